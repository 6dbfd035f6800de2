// Calls that are repeated, joined and cancelled, over gRPC with worker processes.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

class RetryTest : public testing::Test {
 protected:
  // A call that is not waited for.
  template <typename Request, typename Response>
  struct Pending {
    grpc::ClientContext context;
    Request request;
    Response response;
    std::future<grpc::Status> answer;  // the last member: its end waits for the call
  };
  using PendingSleep = Pending<v1::SleepRequest, v1::SleepResponse>;
  using PendingReserve = Pending<v1::ReserveRequest, v1::ReserveResponse>;

  void SetUp() override {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=256MiB", "--host_pool=128MiB", "--safety_reserve=0",
                      "--worker_deadline=60s", "--log_level=debug"});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
    auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model", "guard");
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    const auto weights = worker_->Allocate("weights", "16MiB", 1);
    ASSERT_THAT(weights, IsOk());
    weights_ = *weights;
  }

  std::shared_ptr<PendingSleep> StartSleep(const std::string& request_id,
                                           Duration timeout = seconds(60),
                                           const std::string& worker = "model") {
    auto call = std::make_shared<PendingSleep>();
    call->context.set_deadline(std::chrono::system_clock::now() + timeout);
    call->request.set_level(1);
    call->request.mutable_selector()->add_workers(worker);
    call->request.set_request_id(request_id);
    call->answer = std::async(std::launch::async, [raw = call.get(), stub = &daemon_->stub()] {
      return stub->Sleep(&raw->context, raw->request, &raw->response);
    });
    return call;
  }
  std::shared_ptr<PendingReserve> StartReserve(const std::string& request_id, int64_t bytes,
                                               bool wait, Duration timeout = seconds(60)) {
    auto call = std::make_shared<PendingReserve>();
    call->context.set_deadline(std::chrono::system_clock::now() + timeout);
    call->request.set_name("model");
    call->request.set_request_id(request_id);
    call->request.set_wait(wait);
    call->request.mutable_ttl()->set_seconds(60);
    v1::ReservationPart& part = *call->request.add_parts();
    part.set_name("weights");
    part.set_device_bytes(bytes);
    call->answer = std::async(std::launch::async, [raw = call.get(), stub = &daemon_->stub()] {
      return stub->Reserve(&raw->context, raw->request, &raw->response);
    });
    return call;
  }
  grpc::Status Reserve(const std::string& request_id, int64_t bytes,
                       v1::ReserveResponse& response) {
    const auto call = StartReserve(request_id, bytes, false);
    grpc::Status status = call->answer.get();
    response = call->response;
    return status;
  }
  void WaitForQueue(int length) {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (daemon_->Usage()->queue_size() != length) {
      ASSERT_LT(Clock::Real().Now(), until);
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  // The id of the worker's operation; empty: none.
  std::string Operation(const std::string& name = "model") {
    const auto usage = daemon_->Usage();
    EXPECT_THAT(usage, IsOk());
    if (!usage.ok()) return "";
    for (const v1::WorkerUsage& worker : usage->workers()) {
      if (worker.name() == name) return worker.operation_id();
    }
    return "";
  }
  void WaitForOperation(bool under_way, const std::string& name = "model") {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (Operation(name).empty() == under_way) {
      ASSERT_LT(Clock::Real().Now(), until);
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  void HoldGuard() { ASSERT_THAT(worker_->Ask("guard_begin"), IsOk()); }
  void ReleaseGuard() { ASSERT_THAT(worker_->Ask("guard_end"), IsOk()); }
  void ExpectAwakeAndWhole() {
    WaitForOperation(false);
    const auto usage = daemon_->Usage();
    ASSERT_THAT(usage, IsOk());
    EXPECT_EQ(usage->device().resident_bytes(), MiB(16).value());
    EXPECT_EQ(usage->host_pool().used_bytes(), 0);
    EXPECT_THAT(worker_->Ask("check " + weights_ + " 1"), IsOk());
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<WorkerProcess> worker_;
  std::string weights_;
};

TEST_F(RetryTest, ACancelledSleepIsTakenBack) {
  HoldGuard();
  const auto call = StartSleep("");
  WaitForOperation(true);
  call->context.TryCancel();
  EXPECT_EQ(call->answer.get().error_code(), grpc::StatusCode::CANCELLED);
  // The daemon hears of it later than the caller.
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (daemon_->log().find("CANCELLED OPERATION_CANCELLED") == std::string::npos) {
    ASSERT_LT(Clock::Real().Now(), until) << daemon_->log();
    std::this_thread::sleep_for(milliseconds(5));
  }
  ReleaseGuard();
  ExpectAwakeAndWhole();
  const auto next = StartSleep("");
  EXPECT_TRUE(next->answer.get().ok());
  EXPECT_EQ(next->response.device_bytes(), MiB(16).value());
}

TEST_F(RetryTest, ASecondCallJoinsAndIsMarked) {
  HoldGuard();
  const auto first = StartSleep("sleep-1");
  WaitForOperation(true);
  const std::string operation = Operation();
  const auto second = StartSleep("sleep-1");
  EXPECT_EQ(second->answer.wait_for(milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(Operation(), operation);
  ReleaseGuard();
  ASSERT_TRUE(first->answer.get().ok());
  ASSERT_TRUE(second->answer.get().ok());
  EXPECT_FALSE(first->response.replayed());
  EXPECT_TRUE(second->response.replayed());
  EXPECT_EQ(second->response.device_bytes(), MiB(16).value());
  EXPECT_EQ(second->response.workers(0).worker_id(), worker_->id());
  const auto third = StartSleep("sleep-1");
  ASSERT_TRUE(third->answer.get().ok());
  EXPECT_TRUE(third->response.replayed());
  EXPECT_EQ(third->response.device_bytes(), MiB(16).value());
}

TEST_F(RetryTest, AJoinedCallHasADeadlineOfItsOwn) {
  HoldGuard();
  const auto first = StartSleep("sleep-1");
  WaitForOperation(true);
  const std::string operation = Operation();
  const grpc::Status late = StartSleep("sleep-1", milliseconds(500))->answer.get();
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(late), "OPERATION_DEADLINE");
  const auto cancelled = StartSleep("sleep-1");
  cancelled->context.TryCancel();
  EXPECT_EQ(cancelled->answer.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(Operation(), operation);
  ReleaseGuard();
  EXPECT_TRUE(first->answer.get().ok());
}

TEST_F(RetryTest, TheFirstCallerMayGoWhileOthersWait) {
  HoldGuard();
  const auto first = StartSleep("sleep-1");
  WaitForOperation(true);
  const auto second = StartSleep("sleep-1");
  EXPECT_EQ(second->answer.wait_for(milliseconds(100)), std::future_status::timeout);
  first->context.TryCancel();
  EXPECT_EQ(first->answer.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(second->answer.wait_for(milliseconds(100)), std::future_status::timeout);
  ReleaseGuard();
  EXPECT_TRUE(second->answer.get().ok());
  EXPECT_EQ(second->response.device_bytes(), MiB(16).value());
}

TEST_F(RetryTest, AfterADeadlineTheSameIdTriesAnew) {
  HoldGuard();
  EXPECT_EQ(StartSleep("sleep-1", milliseconds(500))->answer.get().error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  ReleaseGuard();
  WaitForOperation(false);
  const auto again = StartSleep("sleep-1");
  ASSERT_TRUE(again->answer.get().ok());
  EXPECT_FALSE(again->response.replayed());
  EXPECT_EQ(again->response.device_bytes(), MiB(16).value());
}

// The worker pauses for longer than the first caller has time, so that its sleep is rolled back
// behind its back.
TEST_F(RetryTest, AShortDeadlineIsTheFirstCallersOwn) {
  auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "slow", "callback");
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "4MiB", 2), IsOk());
  for (const std::string id : {"", "sleep-1"}) {
    SCOPED_TRACE("request id \"" + id + "\"");
    ASSERT_THAT((*worker)->Ask("on_pause accept 3000"), IsOk());
    const auto first = StartSleep(id, seconds(2), "slow");
    WaitForOperation(true, "slow");
    const auto second = StartSleep(id, seconds(60), "slow");
    const grpc::Status late = first->answer.get();
    ASSERT_THAT((*worker)->Ask("on_pause accept"), IsOk());
    EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_EQ(ReasonOf(late), "WORKER_SILENT");
    const grpc::Status status = second->answer.get();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(second->response.device_bytes(), MiB(4).value());
    EXPECT_FALSE(second->response.replayed());
    ASSERT_THAT((*worker)->Ask("wake"), IsOk());
  }
}

TEST_F(RetryTest, ARepeatedReserveReservesOnce) {
  v1::ReserveResponse first;
  v1::ReserveResponse again;
  ASSERT_TRUE(Reserve("r", MiB(100).value(), first).ok());
  ASSERT_TRUE(Reserve("r", MiB(100).value(), again).ok());
  EXPECT_EQ(again.reservation_id(), first.reservation_id());
  EXPECT_EQ(again.expire_time().seconds(), first.expire_time().seconds());
  EXPECT_FALSE(first.replayed());
  EXPECT_TRUE(again.replayed());
  EXPECT_EQ(daemon_->Usage()->device().promised_bytes(), MiB(100).value());

  const grpc::Status reused = Reserve("r", MiB(99).value(), again);
  EXPECT_EQ(reused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(reused), "REQUEST_ID_REUSED");
  EXPECT_EQ(ReasonOf(StartSleep("r")->answer.get()), "REQUEST_ID_REUSED");
  EXPECT_EQ(ReasonOf(Reserve("no spaces", 1, again)), "BAD_REQUEST_ID");

  const grpc::Status refused = Reserve("large", GiB(1).value(), again);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(refused, "replayed"), "");
  const grpc::Status refused_again = Reserve("large", GiB(1).value(), again);
  EXPECT_EQ(ReasonOf(refused_again), ReasonOf(refused));
  EXPECT_EQ(DetailOf(refused_again, "replayed"), "true");
}

TEST_F(RetryTest, AReserveThatWaitsIsJoined) {
  v1::ReserveResponse held;
  ASSERT_TRUE(Reserve("", MiB(200).value(), held).ok());
  const auto first = StartReserve("r", MiB(150).value(), true);
  WaitForQueue(1);
  const auto second = StartReserve("r", MiB(150).value(), true);
  EXPECT_EQ(second->answer.wait_for(milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(daemon_->Usage()->queue_size(), 1);
  first->context.TryCancel();
  EXPECT_EQ(first->answer.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(second->answer.wait_for(milliseconds(100)), std::future_status::timeout);
  grpc::ClientContext context;
  v1::ReleaseRequest request;
  request.set_reservation_id(held.reservation_id());
  v1::ReleaseResponse released;
  ASSERT_TRUE(daemon_->stub().Release(&context, request, &released).ok());
  ASSERT_TRUE(second->answer.get().ok());
  EXPECT_TRUE(second->response.replayed());
  EXPECT_EQ(daemon_->Usage()->device().promised_bytes(), MiB(150).value());
}

TEST_F(RetryTest, AJoinedReserveKeepsItsPlace) {
  v1::ReserveResponse held;
  ASSERT_TRUE(Reserve("", MiB(200).value(), held).ok());
  const auto first = StartReserve("r", MiB(150).value(), true, seconds(2));
  WaitForQueue(1);
  const auto behind = StartReserve("", MiB(160).value(), true);
  WaitForQueue(2);
  const auto joined = StartReserve("r", MiB(150).value(), true);
  const grpc::Status late = first->answer.get();
  EXPECT_EQ(ReasonOf(late), "RESERVATION_DEADLINE");
  WaitForQueue(2);
  const auto usage = daemon_->Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->queue(0).id(), "q-1");
  EXPECT_EQ(usage->queue(0).device_bytes(), MiB(150).value());
  grpc::ClientContext context;
  v1::ReleaseRequest request;
  request.set_reservation_id(held.reservation_id());
  v1::ReleaseResponse released;
  ASSERT_TRUE(daemon_->stub().Release(&context, request, &released).ok());
  EXPECT_TRUE(joined->answer.get().ok());
  behind->context.TryCancel();
  EXPECT_EQ(behind->answer.get().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(RetryTest, AReserveThatNobodyWaitsForLeavesTheQueue) {
  v1::ReserveResponse held;
  ASSERT_TRUE(Reserve("", MiB(200).value(), held).ok());
  const auto first = StartReserve("r", MiB(150).value(), true);
  WaitForQueue(1);
  const auto second = StartReserve("r", MiB(150).value(), true);
  EXPECT_EQ(second->answer.wait_for(milliseconds(50)), std::future_status::timeout);
  second->context.TryCancel();
  first->context.TryCancel();
  (void)first->answer.get();
  (void)second->answer.get();
  WaitForQueue(0);
  EXPECT_EQ(daemon_->Usage()->device().promised_bytes(), MiB(200).value());
}

TEST_F(RetryTest, ReleaseIsRepeatedToo) {
  v1::ReserveResponse reserved;
  ASSERT_TRUE(Reserve("", MiB(10).value(), reserved).ok());
  for (const bool replayed : {false, true}) {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.set_reservation_id(reserved.reservation_id());
    request.set_request_id("release-1");
    v1::ReleaseResponse response;
    ASSERT_TRUE(daemon_->stub().Release(&context, request, &response).ok());
    EXPECT_EQ(response.device_bytes(), MiB(10).value());
    EXPECT_EQ(response.replayed(), replayed);
  }
}

}  // namespace
}  // namespace torpor
