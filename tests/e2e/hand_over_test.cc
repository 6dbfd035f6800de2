// A daemon that hands over to the next one while something happens to it.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/child_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

// A hand-over that lasts, since a call is under way: of a sleep whose worker is stopped.
class HandOverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(keeper_.Start(), IsOk());
    auto worker = WorkerProcess::Connect(keeper_.worker_socket(), "model");
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    const auto weights = worker_->Allocate("weights", "8MiB", 1);
    ASSERT_THAT(weights, IsOk());
    weights_ = *weights;
    const auto daemon = keeper_.daemon();
    ASSERT_THAT(daemon, IsOk());
    before_ = *daemon;
    worker_->process().Signal(SIGSTOP);
    call_ = std::async(std::launch::async, [this] {
      v1::SleepRequest request;
      request.mutable_selector()->add_workers("model");
      request.set_level(1);
      grpc::ClientContext context;
      v1::SleepResponse response;
      return keeper_.NewStub()->Sleep(&context, request, &response);
    });
    ASSERT_THAT(keeper_.AwaitUsage([](const v1::UsageResponse& usage) {
      return usage.workers_size() == 1 && !usage.workers(0).operation_id().empty();
    }),
                IsOk());
    keeper_.SignalDaemon(SIGHUP);
    AwaitLog("HUP: stopping");
  }
  void TearDown() override {
    if (worker_) worker_->process().Signal(SIGCONT);
    if (HasFailure()) std::fputs(keeper_.log().c_str(), stderr);
  }
  bool Logged(const std::string& text) const {
    return keeper_.log().find(text) != std::string::npos;
  }
  void AwaitLog(const std::string& text) const {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (!Logged(text)) {
      ASSERT_LT(Clock::Real().Now(), until) << text;
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  void ExpectAllIsThere() {
    ASSERT_THAT(keeper_.AwaitDaemon(before_), IsOk());
    EXPECT_THAT(worker_->Ask("wake"), IsOk());
    EXPECT_THAT(worker_->Ask("check " + weights_ + " 1"), IsOk());
  }

  TempDir dir_;
  KeeperProcess keeper_{dir_.path(),
                        {"--host_device_memory=64MiB", "--host_pool=64MiB", "--safety_reserve=0",
                         "--pool_memory=memfd", "--reconnect_grace=120s", "--worker_deadline=120s",
                         "--shutdown_deadline=120s"}};
  std::unique_ptr<WorkerProcess> worker_;
  std::string weights_;
  pid_t before_ = 0;
  std::future<grpc::Status> call_;
};

TEST_F(HandOverTest, ASignalThatComesTwiceDoesNotEndIt) {
  for (int i = 0; i < 10; ++i) keeper_.SignalDaemon(SIGHUP);
  worker_->process().Signal(SIGCONT);
  const grpc::Status slept = call_.get();
  EXPECT_TRUE(slept.ok()) << slept.error_message();
  ASSERT_NO_FATAL_FAILURE(ExpectAllIsThere());
  EXPECT_TRUE(Logged("has ended with status 75")) << keeper_.log();
}

TEST_F(HandOverTest, WaitsForAKeeperThatHasGoneMeanwhile) {
  keeper_.KillKeeper();
  ASSERT_NO_FATAL_FAILURE(AwaitLog("the keeper is lost"));
  worker_->process().Signal(SIGCONT);
  const grpc::Status slept = call_.get();
  EXPECT_TRUE(slept.ok()) << slept.error_message();
  ASSERT_NO_FATAL_FAILURE(AwaitLog("the hand-over waits for a keeper: UNAVAILABLE KEEPER_GONE"));
  EXPECT_EQ(*keeper_.daemon(), before_);
  // Nor does anything stand still.
  EXPECT_THAT(worker_->Ask("wake"), IsOk());
  EXPECT_THAT(worker_->Ask("check " + weights_ + " 1"), IsOk());
  ASSERT_THAT(keeper_.Start(), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectAllIsThere());
}

// A keeper that is stopped, and has not been asked anything since.
TEST(HandOverToNobodyTest, IsRefused) {
  TempDir dir;
  KeeperProcess keeper(dir.path(), {"--host_device_memory=64MiB", "--host_pool=64MiB",
                                    "--safety_reserve=0", "--reconnect_grace=120s"});
  ASSERT_THAT(keeper.Start(), IsOk());
  const auto worker = WorkerProcess::Connect(keeper.worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  const auto weights = (*worker)->Allocate("weights", "8MiB", 1);
  ASSERT_THAT(weights, IsOk());
  const auto before = keeper.daemon();
  ASSERT_THAT(before, IsOk());
  keeper.SignalKeeper(SIGSTOP);
  keeper.SignalDaemon(SIGHUP);
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (keeper.log().find("no hand-over: UNAVAILABLE KEEPER_GONE") == std::string::npos) {
    ASSERT_LT(Clock::Real().Now(), until) << keeper.log();
    std::this_thread::sleep_for(milliseconds(5));
  }
  keeper.KillKeeper();
  ASSERT_THAT(keeper.Start(), IsOk());
  ASSERT_THAT(keeper.AwaitUsage([](const auto& usage) { return usage.protection().code() == 0; }),
              IsOk());
  EXPECT_EQ(*keeper.daemon(), *before);
  keeper.SignalDaemon(SIGHUP);
  ASSERT_THAT(keeper.AwaitDaemon(*before), IsOk());
  EXPECT_THAT((*worker)->Ask("sleep 1"), IsOk());
  EXPECT_THAT((*worker)->Ask("wake"), IsOk());
  EXPECT_THAT((*worker)->Ask("check " + *weights + " 1"), IsOk());
}

}  // namespace
}  // namespace torpor
