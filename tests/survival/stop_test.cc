// Signals that end keeper and daemon, as they come: to the process group, more than once, in the
// midst of something.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "daemon/keeper/journal.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

using std::filesystem::absolute;
using std::filesystem::exists;
using std::filesystem::is_empty;

// Longer than what comes of one signal takes, so that the next one counts.
constexpr Duration kLater = milliseconds(1500);

// A keeper and its daemon in a process group of their own, and a worker, part of which sleeps.
class StopTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Start()); }
  void TearDown() override {
    if (worker_) worker_->process().Signal(SIGCONT);
    if (HasFailure()) std::fputs(seen_.log().c_str(), stderr);
  }

  void Start() {
    ChildProcess::Options options;
    options.command = {"/usr/bin/setsid", absolute("daemon/keeper/torpor-keeper"),
                       "--socket=" + seen_.keeper_socket(), "--journal=" + seen_.journal(), "--"};
    for (std::string& word : DaemonProcess::Command(dir_.path(), flags_)) {
      options.command.push_back(std::move(word));
    }
    options.error_file = dir_.path() + "/keeper.log";
    auto started = ChildProcess::Start(options);
    ASSERT_THAT(started, IsOk());
    keeper_ = *std::move(started);
    const auto daemon = seen_.AwaitDaemon(0);
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *daemon;
    ASSERT_EQ(::getpgid(daemon_), keeper_->pid());
    auto worker = WorkerProcess::Connect(seen_.worker_socket(), "model");
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    ASSERT_THAT(worker_->Allocate("weights", "8MiB", 1), IsOk());
    ASSERT_THAT(worker_->Allocate("adapter", "4MiB", 2), IsOk());
    ASSERT_THAT(worker_->Ask("sleep 1 adapter"), IsOk());
    ASSERT_FALSE(is_empty(pool_dir_.path()));
  }

  void ToGroup(int signal) const { ASSERT_EQ(::kill(-keeper_->pid(), signal), 0); }

  bool Logged(const std::string& text) const { return seen_.log().find(text) != std::string::npos; }
  void AwaitLog(const std::string& text) const {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (!Logged(text)) {
      ASSERT_LT(Clock::Real().Now(), until) << text;
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

  // Of a sleep, until the worker goes on.
  void BeginCall() {
    worker_->process().Signal(SIGSTOP);
    call_ = std::async(std::launch::async, [this] {
      v1::SleepRequest request;
      request.mutable_selector()->add_workers("model");
      request.set_level(1);
      grpc::ClientContext context;
      v1::SleepResponse response;
      return seen_.NewStub()->Sleep(&context, request, &response);
    });
    ASSERT_THAT(seen_.AwaitUsage([](const v1::UsageResponse& usage) {
      return usage.workers_size() == 1 && !usage.workers(0).operation_id().empty();
    }),
                IsOk());
  }
  void EndCall() {
    worker_->process().Signal(SIGCONT);
    const grpc::Status slept = call_.get();
    EXPECT_TRUE(slept.ok()) << slept.error_message();
  }

  // Both end, and the daemon has given back all that was the worker's.
  void ExpectCleanEnd() {
    const auto status = keeper_->Wait();
    ASSERT_THAT(status, IsOk());
    EXPECT_EQ(*status, 0);
    EXPECT_TRUE(Logged(" info stopped"));
    EXPECT_FALSE(exists(seen_.control_socket()));
    EXPECT_FALSE(exists(seen_.worker_socket()));
    EXPECT_TRUE(is_empty(pool_dir_.path()));
    const auto journal = Journal::Open(seen_.journal());
    ASSERT_THAT(journal, IsOk());
    EXPECT_TRUE((*journal)->ledger().sessions().empty());
    EXPECT_TRUE((*journal)->ledger().segments().empty());
    EXPECT_TRUE((*journal)->ledger().images().empty());
    EXPECT_TRUE((*journal)->ledger().extents().empty());
  }
  // As if both had been killed.
  void ExpectHurriedEnd() {
    const auto status = keeper_->Wait();
    ASSERT_THAT(status, IsOk());
    EXPECT_EQ(*status, 0);
    EXPECT_TRUE(Logged("was killed by signal 15"));
    const grpc::Status slept = call_.get();
    EXPECT_EQ(slept.error_code(), grpc::StatusCode::UNAVAILABLE) << slept.error_message();
    const auto journal = Journal::Open(seen_.journal());
    ASSERT_THAT(journal, IsOk());
    EXPECT_EQ((*journal)->ledger().sessions().size(), 1u);
  }

  TempDir dir_;
  TempDir pool_dir_{"/dev/shm"};
  const std::vector<std::string> flags_ = {
      "--host_device_memory=64MiB",    "--host_pool=64MiB",      "--safety_reserve=0",
      "--reconnect_grace=120s",        "--worker_deadline=120s", "--shutdown_deadline=120s",
      "--pool_dir=" + pool_dir_.path()};
  KeeperProcess seen_{dir_.path(), flags_};  // kills the daemon in the end, and starts nothing
  std::unique_ptr<ChildProcess> keeper_;
  std::unique_ptr<WorkerProcess> worker_;
  pid_t daemon_ = 0;
  std::future<grpc::Status> call_;
};

TEST_F(StopTest, TheProcessGroupIsTerminated) {
  ToGroup(SIGTERM);
  ExpectCleanEnd();
}

TEST_F(StopTest, AtATerminal) {
  ToGroup(SIGINT);
  ExpectCleanEnd();
}

// timeout(1), and a shell as first process of a container that passes on what all have got.
TEST_F(StopTest, TheGroupAndThenTheKeeperAreTerminated) {
  ASSERT_NO_FATAL_FAILURE(BeginCall());
  ToGroup(SIGINT);
  keeper_->Signal(SIGTERM);
  ToGroup(SIGTERM);
  EndCall();
  ExpectCleanEnd();
}

TEST_F(StopTest, TheKeeperPassesItOnLate) {
  ASSERT_NO_FATAL_FAILURE(BeginCall());
  keeper_->Signal(SIGSTOP);
  ToGroup(SIGTERM);
  ASSERT_NO_FATAL_FAILURE(AwaitLog("TERM: stopping"));
  std::this_thread::sleep_for(kLater);
  keeper_->Signal(SIGCONT);
  EndCall();
  ExpectCleanEnd();
}

TEST_F(StopTest, AnotherSignalHurries) {
  ASSERT_NO_FATAL_FAILURE(BeginCall());
  ToGroup(SIGTERM);
  ASSERT_NO_FATAL_FAILURE(AwaitLog("TERM: stopping"));
  std::this_thread::sleep_for(kLater);
  ToGroup(SIGTERM);
  ExpectHurriedEnd();
}

TEST_F(StopTest, AnotherSignalToTheKeeperAloneHurries) {
  ASSERT_NO_FATAL_FAILURE(BeginCall());
  keeper_->Signal(SIGTERM);
  ASSERT_NO_FATAL_FAILURE(AwaitLog("TERM: stopping"));
  std::this_thread::sleep_for(kLater);
  keeper_->Signal(SIGINT);
  ExpectHurriedEnd();
}

// systemd's SendSIGHUP, and a terminal that is closed as the service is stopped.
TEST_F(StopTest, AHandOverBecomesAStop) {
  ASSERT_NO_FATAL_FAILURE(BeginCall());
  ToGroup(SIGHUP);
  ASSERT_NO_FATAL_FAILURE(AwaitLog("HUP: stopping"));
  ToGroup(SIGTERM);
  EndCall();
  ExpectCleanEnd();
  EXPECT_TRUE(Logged("stopping, and not handing over"));
}

TEST_F(StopTest, AHandOverIsFollowedByAStopAtAnyTime) {
  for (const int ms : {0, 1, 5, 20, 30, 40, 50, 60, 70, 80, 90, 100, 120, 150, 300}) {
    SCOPED_TRACE(ms);
    if (keeper_ == nullptr) {
      ASSERT_NO_FATAL_FAILURE(Start());
    }
    keeper_->Signal(SIGHUP);
    std::this_thread::sleep_for(milliseconds(ms));
    keeper_->Signal(SIGTERM);
    ExpectCleanEnd();
    if (HasFailure()) return;
    keeper_.reset();
    worker_.reset();
    std::filesystem::remove(dir_.path() + "/keeper.log");
  }
}

}  // namespace
}  // namespace torpor
