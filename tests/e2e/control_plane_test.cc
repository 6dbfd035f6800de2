// Sleep and wake of worker processes over gRPC, and what the daemon does when it is stopped
// meanwhile.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

using testing::HasSubstr;

class ControlPlaneTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"--host_device_memory=256MiB", "--host_pool=128MiB",
                                 "--safety_reserve=0", "--log_level=debug"});
    auto daemon = DaemonProcess::Start(dir_.path(), flags);
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<WorkerProcess> Connect(const std::string& name,
                                         const std::string& quiesce = "guard") {
    auto worker = WorkerProcess::Connect(daemon_->worker_socket(), name, quiesce);
    if (worker.ok()) return *std::move(worker);
    ADD_FAILURE() << worker.status().ToString();
    return nullptr;
  }
  grpc::Status Sleep(const v1::SleepRequest& request, v1::SleepResponse& response,
                     Duration timeout = seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return daemon_->stub().Sleep(&context, request, &response);
  }
  grpc::Status WakeUp(const v1::WakeUpRequest& request, v1::WakeUpResponse& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    return daemon_->stub().WakeUp(&context, request, &response);
  }
  static v1::SleepRequest LevelOne(const std::string& worker) {
    v1::SleepRequest request;
    request.set_level(1);
    request.mutable_selector()->add_workers(worker);
    return request;
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(ControlPlaneTest, SleepsAndWakesOneOfTwo) {
  Start();
  const auto first = Connect("first");
  const auto second = Connect("second");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const auto weights = first->Allocate("weights", "24MiB", 1);
  const auto cache = first->Allocate("kv_cache", "8MiB", 2);
  const auto other = second->Allocate("weights", "16MiB", 3);
  ASSERT_TRUE(weights.ok() && cache.ok() && other.ok());
  const auto before = daemon_->Usage();
  ASSERT_THAT(before, IsOk());
  ASSERT_EQ(before->workers_size(), 2);
  EXPECT_EQ(before->workers(0).name(), "first");
  EXPECT_EQ(before->workers(0).pid(), first->process().pid());

  v1::SleepResponse slept;
  ASSERT_TRUE(Sleep(LevelOne("first"), slept).ok());
  ASSERT_EQ(slept.workers_size(), 1);
  EXPECT_EQ(slept.workers(0).worker_id(), first->id());
  EXPECT_EQ(slept.device_bytes(), MiB(32).value());
  EXPECT_EQ(slept.copied_bytes(), MiB(24).value());
  EXPECT_EQ(slept.workers(0).discarded_bytes(), MiB(8).value());
  const auto asleep = daemon_->Usage();
  ASSERT_THAT(asleep, IsOk());
  EXPECT_EQ(asleep->device().free_bytes(), before->device().free_bytes() + slept.device_bytes());
  EXPECT_EQ(asleep->host_pool().used_bytes(), MiB(24).value());
  EXPECT_THAT(second->Ask("check " + *other + " 3"), IsOk());

  v1::WakeUpRequest request;
  request.mutable_selector()->add_workers(first->id());
  v1::WakeUpResponse woken;
  ASSERT_TRUE(WakeUp(request, woken).ok());
  EXPECT_EQ(woken.device_bytes(), MiB(32).value());
  EXPECT_THAT(first->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_THAT(first->Ask("checkzero " + *cache), IsOk());
  EXPECT_EQ(*daemon_->Stop(), 0);
  EXPECT_THAT(daemon_->log(),
              testing::ContainsRegex("worker " + first->id() + " .first.: op-1 slept 2 segments"));
}

TEST_F(ControlPlaneTest, OutcomesThatDifferAreInTheAnswer) {
  Start();
  const auto willing = Connect("willing");
  const auto unwilling = Connect("unwilling", "none");
  ASSERT_TRUE(willing != nullptr && unwilling != nullptr);
  ASSERT_THAT(willing->Allocate("weights", "4MiB", 1), IsOk());
  ASSERT_THAT(unwilling->Allocate("weights", "4MiB", 1), IsOk());
  v1::SleepRequest request;
  request.set_level(1);
  request.mutable_selector()->set_all(true);
  v1::SleepResponse response;
  ASSERT_TRUE(Sleep(request, response).ok());
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(0).status().code(), 0);
  EXPECT_EQ(response.workers(1).status().code(), grpc::StatusCode::FAILED_PRECONDITION);

  // Alone, its failure is the call's.
  const grpc::Status alone = Sleep(LevelOne("unwilling"), response);
  EXPECT_EQ(alone.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(alone), "WORKER_NOT_QUIESCIBLE");
}

TEST_F(ControlPlaneTest, ARefusalNamesTheWorkersOwnEndpoint) {
  Start();
  const auto engine = Connect("engine", "none");
  ASSERT_NE(engine, nullptr);
  ASSERT_THAT(engine->Allocate("weights", "4MiB", 1), IsOk());
  ASSERT_THAT(engine->Ask("sleep_endpoint POST http://localhost:8000/sleep"), IsOk());
  const auto usage = daemon_->Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->workers(0).sleep_endpoint(), "POST http://localhost:8000/sleep");
  v1::SleepResponse response;
  const grpc::Status refused = Sleep(LevelOne("engine"), response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonOf(refused), "WORKER_NOT_QUIESCIBLE");
  EXPECT_EQ(DetailOf(refused, "sleep_endpoint"), "POST http://localhost:8000/sleep");
  EXPECT_THAT(refused.error_message(), HasSubstr("POST http://localhost:8000/sleep"));

  EXPECT_THAT(engine->Ask("sleep_endpoint " + std::string(256, 'x')), HasReason("BAD_ENDPOINT"));
  ASSERT_THAT(engine->Ask("sleep_endpoint"), IsOk());
  EXPECT_EQ(daemon_->Usage()->workers(0).sleep_endpoint(), "");
  EXPECT_EQ(DetailOf(Sleep(LevelOne("engine"), response), "sleep_endpoint"), "");
}

TEST_F(ControlPlaneTest, TheErrorArrivesBeforeTheDeadline) {
  Start();
  const auto worker = Connect("busy");
  ASSERT_NE(worker, nullptr);
  const auto weights = worker->Allocate("weights", "4MiB", 1);
  ASSERT_THAT(weights, IsOk());
  ASSERT_THAT(worker->Ask("guard_begin"), IsOk());
  v1::SleepResponse response;
  const grpc::Status status = Sleep(LevelOne("busy"), response, milliseconds(1000));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(ReasonOf(status), "") << status.error_message();
  ASSERT_THAT(worker->Ask("guard_end"), IsOk());
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
}

TEST_F(ControlPlaneTest, StoppingWaitsForRunningCalls) {
  Start();
  const auto worker = Connect("busy");
  ASSERT_NE(worker, nullptr);
  ASSERT_THAT(worker->Allocate("weights", "4MiB", 1), IsOk());
  ASSERT_THAT(worker->Ask("guard_begin"), IsOk());
  v1::SleepResponse response;
  auto slept = std::async(std::launch::async, [&] { return Sleep(LevelOne("busy"), response); });
  ASSERT_EQ(slept.wait_for(milliseconds(300)), std::future_status::timeout);
  daemon_->process().Signal(SIGTERM);
  EXPECT_THAT(daemon_->process().Wait(milliseconds(500)), HasReason("STILL_RUNNING"));
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse health;
  const auto stub = grpc::health::v1::Health::NewStub(daemon_->channel());
  ASSERT_TRUE(stub->Check(&context, {}, &health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_THAT(daemon_->Usage(), HasReason("DAEMON_STOPPING"));
  ASSERT_THAT(worker->Ask("guard_end"), IsOk());
  EXPECT_TRUE(slept.get().ok());
  EXPECT_EQ(*daemon_->process().Wait(), 0);
}

TEST_F(ControlPlaneTest, StoppingDoesNotWaitForEver) {
  Start({"--shutdown_deadline=300ms", "--worker_deadline=2m"});
  const auto worker = Connect("busy");
  ASSERT_NE(worker, nullptr);
  ASSERT_THAT(worker->Allocate("weights", "4MiB", 1), IsOk());
  ASSERT_THAT(worker->Ask("guard_begin"), IsOk());
  v1::SleepResponse response;
  auto slept = std::async(std::launch::async, [&] { return Sleep(LevelOne("busy"), response); });
  ASSERT_EQ(slept.wait_for(milliseconds(300)), std::future_status::timeout);
  daemon_->process().Signal(SIGTERM);
  EXPECT_EQ(*daemon_->process().Wait(seconds(30)), 0);
  EXPECT_FALSE(slept.get().ok());
  EXPECT_THAT(daemon_->log(), HasSubstr("1 calls still under way"));
}

TEST_F(ControlPlaneTest, ADaemonThatStopsLeavesWorkersTheirMemory) {
  Start();
  const auto worker = Connect("model");
  ASSERT_NE(worker, nullptr);
  const auto weights = worker->Allocate("weights", "8MiB", 5);
  ASSERT_THAT(weights, IsOk());
  ASSERT_EQ(*daemon_->Stop(), 0);
  EXPECT_THAT(worker->Ask("check " + *weights + " 5"), IsOk());
}

}  // namespace
}  // namespace torpor
