// Calls of Reserve that wait, against a running torpord.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

class WaitingCalls : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=64MiB", "--safety_reserve=4MiB", "--host_pool=32MiB"});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
    // gRPC 1.51 now and then aborts when a channel ends right after a call with a callback.
    static auto& kept = *new std::vector<std::shared_ptr<grpc::Channel>>();
    kept.push_back(daemon_->channel());
  }
  // A call under way.
  struct Call {
    grpc::ClientContext context;
    v1::ReserveRequest request;
    v1::ReserveResponse response;
    std::promise<grpc::Status> promise;
    std::future<grpc::Status> answer = promise.get_future();
    bool Waits() const { return answer.wait_for(seconds(0)) != std::future_status::ready; }
  };
  std::shared_ptr<Call> Reserve(Bytes size, bool wait, Duration timeout = seconds(60)) {
    auto call = std::make_shared<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + timeout);
    call->request.set_name("model");
    v1::ReservationPart& part = *call->request.add_parts();
    part.set_name("weights");
    part.set_device_bytes(size.value());
    call->request.mutable_ttl()->set_seconds(600);
    call->request.set_wait(wait);
    daemon_->stub().async()->Reserve(
        &call->context, &call->request, &call->response,
        [call](const grpc::Status& status) { call->promise.set_value(status); });
    return call;
  }
  std::string Fill() {
    const auto call = Reserve(MiB(60), false);
    EXPECT_TRUE(call->answer.get().ok());
    return call->response.reservation_id();
  }
  void Release(const std::string& id) {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.set_reservation_id(id);
    v1::ReleaseResponse response;
    EXPECT_TRUE(daemon_->stub().Release(&context, request, &response).ok());
  }
  v1::UsageResponse Usage() {
    const auto usage = daemon_->Usage();
    EXPECT_THAT(usage, IsOk());
    return usage.ok() ? *usage : v1::UsageResponse();
  }
  void WaitForQueue(int length) {
    const TimePoint until = Clock::Real().Now() + seconds(20);
    while (Usage().queue_size() != length) {
      ASSERT_LT(Clock::Real().Now(), until);
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  int Threads() {
    const std::string status =
        ReadFile("/proc/" + std::to_string(daemon_->process().pid()) + "/status");
    return std::stoi(status.substr(status.find("Threads:") + 8));
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(WaitingCalls, AreServedInTheirOrder) {
  const std::string all = Fill();
  const auto first = Reserve(MiB(40), true);
  WaitForQueue(1);
  const auto second = Reserve(MiB(40), true);
  WaitForQueue(2);
  const v1::UsageResponse usage = Usage();
  EXPECT_EQ(usage.queue(0).position(), 1);
  EXPECT_EQ(usage.queue(1).position(), 2);
  EXPECT_EQ(usage.queue(0).name(), "model");
  EXPECT_EQ(usage.queue(0).device_bytes(), MiB(40).value());
  EXPECT_EQ(usage.queue(0).parts(0).name(), "weights");
  EXPECT_GT(usage.queue(0).deadline_time().seconds(), usage.queue(0).since_time().seconds() + 50);
  Release(all);
  ASSERT_TRUE(first->answer.get().ok());
  EXPECT_TRUE(second->Waits());
  // Who does not wait comes last.
  const auto third = Reserve(MiB(1), false);
  const grpc::Status refused = third->answer.get();
  EXPECT_EQ(ReasonOf(refused), "DEVICE_BUDGET_EXHAUSTED");
  EXPECT_EQ(DetailOf(refused, "queued_bytes"), std::to_string(MiB(40).value()));
  Release(first->response.reservation_id());
  EXPECT_TRUE(second->answer.get().ok());
}

TEST_F(WaitingCalls, EndAtTheirDeadlineWithTheArithmetic) {
  const std::string all = Fill();
  const auto worker =
      WorkerProcess::Connect(daemon_->worker_socket(), "engine", "guard", "reservation=" + all);
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "8MiB", 1), IsOk());
  const auto call = Reserve(MiB(40), true, milliseconds(400));
  const grpc::Status late = call->answer.get();
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(late), "RESERVATION_DEADLINE");
  EXPECT_EQ(DetailOf(late, "requested_bytes"), std::to_string(MiB(40).value()));
  EXPECT_EQ(DetailOf(late, "available_bytes"), "0");
  EXPECT_EQ(DetailOf(late, "reservations"), "model (" + all + "): 54525952");
  EXPECT_EQ(DetailOf(late, "workers"), "engine (w-1): 8388608");
  EXPECT_EQ(Usage().queue_size(), 0);
}

TEST_F(WaitingCalls, LeaveWhenTheyAreCancelled) {
  const std::string all = Fill();
  const auto call = Reserve(MiB(40), true);
  WaitForQueue(1);
  call->context.TryCancel();
  EXPECT_EQ(call->answer.get().error_code(), grpc::StatusCode::CANCELLED);
  WaitForQueue(0);
  Release(all);
  EXPECT_EQ(Usage().reservations_size(), 0);
}

TEST_F(WaitingCalls, WhatNeverFitsDoesNotWait) {
  const grpc::Status refused = Reserve(MiB(61), true)->answer.get();
  EXPECT_EQ(ReasonOf(refused), "NEVER_FITS");
  EXPECT_EQ(DetailOf(refused, "most_bytes"), std::to_string(MiB(60).value()));
}

TEST_F(WaitingCalls, HoldNoThread) {
  const std::string all = Fill();
  const int before = Threads();
  constexpr int kCalls = 1000;  // more than there may be threads, and all at once
  std::vector<std::shared_ptr<Call>> calls;
  calls.reserve(kCalls);
  for (int i = 0; i < kCalls; ++i) calls.push_back(Reserve(KiB(32), true));
  WaitForQueue(kCalls);
  EXPECT_LT(Threads(), before + 50);
  Release(all);
  for (const auto& call : calls) EXPECT_TRUE(call->answer.get().ok());
  EXPECT_EQ(Usage().reservations_size(), kCalls);
}

TEST_F(WaitingCalls, DoNotKeepTheDaemonFromStopping) {
  const std::string all = Fill();
  const auto call = Reserve(MiB(40), true);
  WaitForQueue(1);
  const TimePoint start = Clock::Real().Now();
  EXPECT_EQ(*daemon_->Stop(), 0);
  EXPECT_LT(Clock::Real().Now() - start, seconds(8));
  const grpc::Status ended = call->answer.get();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace torpor
