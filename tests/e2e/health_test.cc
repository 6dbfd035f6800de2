// What grpc.health.v1 says of a real torpord, and when.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/health_stream.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kService[] = "torpor.v1.MemoryService";

class HealthTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--host_device_memory=64MiB", "--host_pool=64MiB"});
    auto daemon = DaemonProcess::Start(dir_.path(), flags);
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
    auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model");
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    ASSERT_THAT(worker_->Allocate("weights", "8MiB", 1), IsOk());
  }
  grpc::Status Sleep(Duration timeout) {
    v1::SleepRequest request;
    request.mutable_selector()->add_workers("model");
    request.set_level(1);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    v1::SleepResponse response;
    return daemon_->stub().Sleep(&context, request, &response);
  }
  bool IsUnderOperation() const {
    const auto usage = daemon_->Usage();
    return usage.ok() && usage->workers_size() == 1 && !usage->workers(0).operation_id().empty();
  }
  void TearDown() override {
    if (worker_) worker_->process().Signal(SIGCONT);
    if (HasFailure() && daemon_) std::fputs(daemon_->log().c_str(), stderr);
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<WorkerProcess> worker_;
};

TEST_F(HealthTest, health_says_not_serving_when_stuck) {
  Start({"--worker_deadline=200ms"});
  HealthStream health(daemon_->channel());
  HealthStream service(daemon_->channel(), kService);
  HealthStream alive(daemon_->channel(), "torpor.alive");
  ASSERT_TRUE(health.Await(Serving::SERVING));
  ASSERT_TRUE(service.Await(Serving::SERVING));
  ASSERT_TRUE(alive.Await(Serving::SERVING));

  worker_->process().Signal(SIGSTOP);
  const TimePoint deadline = Clock::Real().Now() + seconds(2);
  const grpc::Status refused = Sleep(seconds(2));
  EXPECT_EQ(ReasonOf(refused), "WORKER_SILENT") << refused.error_message();
  EXPECT_EQ(DetailOf(refused, "rollback_pending"), "true");
  ASSERT_TRUE(health.Await(Serving::NOT_SERVING));
  // Not before its deadline, by which the worker may have come to life.
  EXPECT_GE(Clock::Real().Now(), deadline);
  EXPECT_TRUE(service.Await(Serving::NOT_SERVING));
  EXPECT_EQ(HealthOf(daemon_->channel()), Serving::NOT_SERVING);
  const auto stuck = daemon_->Usage();
  ASSERT_THAT(stuck, IsOk());
  EXPECT_EQ(stuck->health().code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(stuck->health().message(), HasSubstr("worker w-1 (model)"));
  ASSERT_EQ(stuck->health().details_size(), 1);
  EXPECT_THAT(stuck->health().details(0).value(), HasSubstr("OPERATION_STUCK"));
  EXPECT_THAT(daemon_->log(), HasSubstr("health: not serving"));

  worker_->process().Signal(SIGCONT);
  ASSERT_TRUE(health.Await(Serving::SERVING));
  EXPECT_TRUE(service.Await(Serving::SERVING));
  const auto rested = daemon_->Usage();
  ASSERT_THAT(rested, IsOk());
  EXPECT_EQ(rested->health().code(), 0);
  EXPECT_TRUE(Sleep(seconds(60)).ok());
  EXPECT_THAT(health.told(), ElementsAre(Serving::SERVING, Serving::NOT_SERVING, Serving::SERVING));
  EXPECT_THAT(alive.told(), ElementsAre(Serving::SERVING));
}

TEST_F(HealthTest, AWorkerThatIsStoppedIsNotStuckWithinTheDeadline) {
  Start({"--worker_deadline=50ms"});
  HealthStream health(daemon_->channel());
  worker_->process().Signal(SIGSTOP);
  EXPECT_EQ(ReasonOf(Sleep(seconds(600))), "WORKER_SILENT");
  EXPECT_TRUE(IsUnderOperation());
  // Many times the margin.
  std::this_thread::sleep_for(seconds(2));
  EXPECT_THAT(health.told(), ElementsAre(Serving::SERVING));
}

TEST_F(HealthTest, AWedgedWorkerThatIsKilledIsNotStuck) {
  Start({"--worker_deadline=50ms"});
  HealthStream health(daemon_->channel());
  worker_->process().Signal(SIGSTOP);
  EXPECT_FALSE(Sleep(milliseconds(500)).ok());
  ASSERT_TRUE(health.Await(Serving::NOT_SERVING));
  worker_->process().Signal(SIGKILL);
  ASSERT_TRUE(health.Await(Serving::SERVING));
}

TEST_F(HealthTest, NotServingWhileDraining) {
  Start({"--worker_deadline=120s", "--shutdown_deadline=120s"});
  HealthStream health(daemon_->channel());
  ASSERT_TRUE(health.Await(Serving::SERVING));
  worker_->process().Signal(SIGSTOP);
  auto sleep = std::async(std::launch::async, [this] { return Sleep(seconds(600)); });
  while (!IsUnderOperation()) std::this_thread::sleep_for(milliseconds(5));
  daemon_->process().Signal(SIGTERM);
  ASSERT_TRUE(health.Await(Serving::NOT_SERVING));
  EXPECT_EQ(HealthOf(daemon_->channel(), kService), Serving::NOT_SERVING);
  // It still does what it was asked for.
  worker_->process().Signal(SIGCONT);
  EXPECT_TRUE(sleep.get().ok());
  EXPECT_EQ(*daemon_->process().Wait(), 0);
}

// Whenever it says that it serves, it does: also right after it was killed.
TEST_F(HealthTest, ServingMeansServingAfterARestart) {
  KeeperProcess keeper(dir_.path(), {"--host_device_memory=64MiB", "--host_pool=64MiB",
                                     "--pool_memory=memfd", "--safety_reserve=0"});
  ASSERT_THAT(keeper.Start(), IsOk());
  const auto worker = WorkerProcess::Connect(keeper.worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "8MiB", 1), IsOk());
  for (int round = 0; round < 3; ++round) {
    const auto before = keeper.daemon();
    ASSERT_THAT(before, IsOk());
    keeper.KillDaemon();
    const TimePoint until = Clock::Real().Now() + kPatience;
    for (bool served = false; !served;) {
      ASSERT_LT(Clock::Real().Now(), until) << keeper.log();
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto channel = grpc::CreateCustomChannel("unix:" + keeper.control_socket(),
                                                     grpc::InsecureChannelCredentials(), arguments);
      if (HealthOf(channel, kService) != Serving::SERVING) continue;
      grpc::ClientContext context;
      v1::UsageResponse usage;
      const grpc::Status asked = v1::MemoryService::NewStub(channel)->Usage(&context, {}, &usage);
      EXPECT_TRUE(asked.ok()) << asked.error_message();
      EXPECT_EQ(usage.workers_size(), 1);
      served = true;
    }
    ASSERT_THAT(keeper.AwaitDaemon(*before), IsOk());
  }
  EXPECT_EQ(*keeper.Stop(), 0);
}

// With a driver that does as files say.
class FaultyDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::setenv("TORPOR_TEST_FAULTS", dir_.path().c_str(), 1), 0);
    ASSERT_THAT(keeper_.Start(), IsOk());
    auto worker = WorkerProcess::Connect(keeper_.worker_socket(), "model");
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    ASSERT_THAT(worker_->Allocate("weights", "8MiB", 1), IsOk());
  }
  void TearDown() override {
    // Whoever is held goes on, and ends.
    for (const char* fault : {"hold-GetMemoryInfo", "hold-Import"}) Take(fault);
    if (HasFailure()) std::fputs(keeper_.log().c_str(), stderr);
  }
  void Give(const std::string& fault, const std::string& reason = "") const {
    std::ofstream(dir_.path() + "/new") << reason;
    ASSERT_EQ(::rename((dir_.path() + "/new").c_str(), (dir_.path() + "/" + fault).c_str()), 0);
  }
  void Take(const std::string& fault) const { ::unlink((dir_.path() + "/" + fault).c_str()); }
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("unix:" + keeper_.control_socket(),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  void ExpectUsable() {
    EXPECT_THAT(worker_->Ask("sleep 1"), IsOk());
    EXPECT_THAT(worker_->Ask("wake"), IsOk());
  }

  TempDir dir_;
  KeeperProcess keeper_{dir_.path(),
                        {"--host_device_memory=64MiB", "--host_pool=64MiB", "--safety_reserve=0",
                         "--pool_memory=memfd", "--reconnect_grace=120s"},
                        "tests/e2e/faulty_torpord"};
  std::unique_ptr<WorkerProcess> worker_;
};

TEST_F(FaultyDriverTest, ALostGpuAndBack) {
  const auto channel = NewChannel();
  HealthStream health(channel);
  HealthStream alive(channel, "torpor.alive");
  ASSERT_TRUE(health.Await(Serving::SERVING));
  ASSERT_TRUE(alive.Await(Serving::SERVING));
  Give("fail-GetMemoryInfo", "CUDA_ERROR_DEVICE_UNAVAILABLE");
  ASSERT_TRUE(health.Await(Serving::NOT_SERVING));
  EXPECT_TRUE(alive.Await(Serving::NOT_SERVING));
  EXPECT_THAT(keeper_.Usage(), HasReason("GPU_LOST"));
  EXPECT_THAT(keeper_.log(), HasSubstr("GPU_LOST"));
  Take("fail-GetMemoryInfo");
  ASSERT_TRUE(health.Await(Serving::SERVING));
  EXPECT_TRUE(alive.Await(Serving::SERVING));
  EXPECT_THAT(keeper_.Usage(), IsOk());
  ExpectUsable();
}

TEST_F(FaultyDriverTest, ADriverThatDoesNotReturn) {
  const auto channel = NewChannel();
  HealthStream health(channel);
  ASSERT_TRUE(health.Await(Serving::SERVING));
  Give("hold-GetMemoryInfo");
  ASSERT_TRUE(health.Await(Serving::NOT_SERVING));
  EXPECT_THAT(keeper_.Usage(), HasReason("DRIVER_SILENT"));
  EXPECT_EQ(HealthOf(channel, "torpor.alive"), Serving::NOT_SERVING);
  Take("hold-GetMemoryInfo");
  ASSERT_TRUE(health.Await(Serving::SERVING));
  ExpectUsable();
}

TEST_F(FaultyDriverTest, NotServingWhileItTakesOverWhatWasLeft) {
  const auto before = keeper_.daemon();
  ASSERT_THAT(before, IsOk());
  Give("hold-Import");
  keeper_.KillDaemon();
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (HealthOf(NewChannel()) != Serving::NOT_SERVING) {
    ASSERT_LT(Clock::Real().Now(), until) << keeper_.log();
    std::this_thread::sleep_for(milliseconds(5));
  }
  const auto channel = NewChannel();
  HealthStream health(channel);
  EXPECT_TRUE(health.Await(Serving::NOT_SERVING));
  EXPECT_EQ(HealthOf(channel, kService), Serving::NOT_SERVING);
  EXPECT_EQ(HealthOf(channel, "torpor.alive"), Serving::SERVING);
  EXPECT_THAT(keeper_.Usage(), HasReason("DAEMON_STARTING"));
  Take("hold-Import");
  ASSERT_TRUE(health.Await(Serving::SERVING));
  EXPECT_THAT(health.told(), ElementsAre(Serving::NOT_SERVING, Serving::SERVING));
  const auto usage = keeper_.Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->workers_size(), 1);
  ASSERT_THAT(keeper_.AwaitDaemon(*before), IsOk());
  ExpectUsable();
}

}  // namespace
}  // namespace torpor
