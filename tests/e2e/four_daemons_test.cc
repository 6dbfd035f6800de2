// Four daemons of one machine, asked by one call of torporctl: what it says of each is what became
// of its workers, also where one is dead, dies meanwhile, refuses or does not answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr int kDaemons = 4;
// Whose fate differs from the others'.
constexpr int kOdd = 2;

// One of the four, and its worker with 8 MiB of weights and 4 MiB of KV cache.
struct Node {
  std::unique_ptr<DaemonProcess> daemon;
  std::unique_ptr<WorkerProcess> worker;
  std::string weights;
};

class FourDaemonsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kDaemons; ++i) ASSERT_NO_FATAL_FAILURE(StartDaemon(i));
  }
  void StartDaemon(int i, const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {"--device=host-" + std::to_string(i),
                                      "--host_device_memory=64MiB", "--host_pool=32MiB"};
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon = DaemonProcess::Start(dir_.path(), flags);
    ASSERT_THAT(daemon, IsOk());
    nodes_[i].daemon = *std::move(daemon);
  }
  void ConnectWorkers() {
    for (int i = 0; i < kDaemons; ++i) {
      ASSERT_NO_FATAL_FAILURE(ConnectWorker(i, "rank-" + std::to_string(i), "guard"));
    }
  }
  void ConnectWorker(int i, const std::string& name, const std::string& quiesce) {
    auto worker = WorkerProcess::Connect(nodes_[i].daemon->worker_socket(), name, quiesce);
    ASSERT_THAT(worker, IsOk());
    nodes_[i].worker = *std::move(worker);
    const auto weights = nodes_[i].worker->Allocate("weights", "8MiB", i + 1);
    ASSERT_THAT(weights, IsOk());
    nodes_[i].weights = *weights;
    ASSERT_THAT(nodes_[i].worker->Allocate("kv_cache", "4MiB", 9), IsOk());
  }

  std::vector<std::string> Command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), std::filesystem::absolute("client/ctl/torporctl"));
    arguments.push_back("--runtime-dir=" + dir_.path());
    return arguments;
  }
  Finished Ctl(const std::vector<std::string>& arguments) const {
    const auto finished = RunProgram(Command(arguments));
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  }
  // What all daemons would have to say if they could.
  static std::vector<std::string> All(const std::string& verb) {
    std::vector<std::string> arguments = {verb, "--all", "--all-devices"};
    if (verb == "sleep") arguments.emplace_back("--level=1");
    return arguments;
  }

  // What the daemon itself says of its only worker's weights.
  Bytes Offloaded(int i) const {
    const auto usage = nodes_[i].daemon->Usage();
    EXPECT_THAT(usage, IsOk());
    Bytes sum(0);
    if (!usage.ok() || usage->workers_size() != 1) return sum;
    for (const v1::TagUsage& tag : usage->workers(0).tags()) {
      if (tag.tag() == "weights") sum = Bytes(tag.offloaded_bytes());
    }
    return sum;
  }
  void ExpectAsleep(int i) const { EXPECT_EQ(Offloaded(i), MiB(8)) << "host-" << i; }
  void ExpectAwakeWithItsBytes(int i) {
    EXPECT_EQ(Offloaded(i), Bytes(0)) << "host-" << i;
    EXPECT_THAT(nodes_[i].worker->Ask("check " + nodes_[i].weights + " " + std::to_string(i + 1)),
                IsOk());
  }
  void ExpectOthersAsleep() const {
    for (int i = 0; i < kDaemons; ++i) {
      if (i != kOdd) ExpectAsleep(i);
    }
  }
  // The odd one is named with `reason`, and nobody else is.
  static void ExpectOnlyOddOneFailed(const Finished& finished, const std::string& reason) {
    EXPECT_EQ(finished.exit_status, 3) << finished.output << finished.errors;
    EXPECT_THAT(finished.errors, ContainsRegex("host-2[^\n]*" + reason));
    for (const char* other : {"host-0", "host-1", "host-3"}) {
      EXPECT_THAT(finished.errors, Not(HasSubstr(other)));
      EXPECT_THAT(finished.output, HasSubstr(other));
    }
  }

  TempDir dir_;
  std::array<Node, kDaemons> nodes_;
};

TEST_F(FourDaemonsTest, OneCallMovesAll) {
  ASSERT_NO_FATAL_FAILURE(ConnectWorkers());
  const Finished slept = Ctl(All("sleep"));
  EXPECT_EQ(slept.exit_status, 0) << slept.errors;
  for (int i = 0; i < kDaemons; ++i) {
    EXPECT_THAT(slept.output, HasSubstr("rank-" + std::to_string(i)));
    ExpectAsleep(i);
  }
  const Finished woken = Ctl(All("wake"));
  EXPECT_EQ(woken.exit_status, 0) << woken.errors;
  for (int i = 0; i < kDaemons; ++i) ExpectAwakeWithItsBytes(i);
}

TEST_F(FourDaemonsTest, OneIsDead) {
  ASSERT_NO_FATAL_FAILURE(ConnectWorkers());
  nodes_[kOdd].daemon->process().Signal(SIGKILL);
  ASSERT_THAT(nodes_[kOdd].daemon->process().Wait(), IsOk());
  std::vector<std::string> sleep = {"sleep", "--all", "--level=1"};
  for (int i = 0; i < kDaemons; ++i) sleep.push_back("--device=host-" + std::to_string(i));
  ExpectOnlyOddOneFailed(Ctl(sleep), "UNAVAILABLE");
  ExpectOthersAsleep();
  // Its worker has what it had.
  EXPECT_THAT(nodes_[kOdd].worker->Ask("check " + nodes_[kOdd].weights + " 3"), IsOk());
}

TEST_F(FourDaemonsTest, OneIsKilledMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(ConnectWorkers());
  ASSERT_THAT(nodes_[kOdd].worker->Ask("guard_begin"), IsOk());
  TempDir out;
  ChildProcess::Options options;
  options.command = Command(All("sleep"));
  options.error_file = out.path() + "/errors";
  auto ctl = ChildProcess::Start(options);
  ASSERT_THAT(ctl, IsOk());
  while (nodes_[kOdd].daemon->Usage()->workers(0).operation_id().empty()) {
    ASSERT_THAT((*ctl)->Wait(milliseconds(5)), HasReason("STILL_RUNNING"));
  }
  nodes_[kOdd].daemon->process().Signal(SIGKILL);
  const auto output = (*ctl)->ReadAll();
  const auto status = (*ctl)->Wait();
  ASSERT_TRUE(output.ok() && status.ok());
  ExpectOnlyOddOneFailed({*status, *output, ReadFile(options.error_file)}, "UNAVAILABLE");
  ExpectOthersAsleep();
  ASSERT_THAT(nodes_[kOdd].worker->Ask("guard_end"), IsOk());
  EXPECT_THAT(nodes_[kOdd].worker->Ask("check " + nodes_[kOdd].weights + " 3"), IsOk());
}

TEST_F(FourDaemonsTest, OneDoesNotAnswer) {
  ASSERT_NO_FATAL_FAILURE(ConnectWorkers());
  nodes_[kOdd].daemon->process().Signal(SIGSTOP);
  std::vector<std::string> sleep = All("sleep");
  sleep.emplace_back("--timeout=3s");
  const Finished slept = Ctl(sleep);
  nodes_[kOdd].daemon->process().Signal(SIGCONT);
  ExpectOnlyOddOneFailed(slept, "DEADLINE_EXCEEDED");
  ExpectOthersAsleep();
  // Whatever the daemon that comes to life makes of the call: one more makes it whole.
  const Finished again = Ctl(All("wake"));
  EXPECT_EQ(again.exit_status, 0) << again.errors;
  for (int i = 0; i < kDaemons; ++i) ExpectAwakeWithItsBytes(i);
}

TEST_F(FourDaemonsTest, OneRefuses) {
  for (int i = 0; i < kDaemons; ++i) {
    ASSERT_NO_FATAL_FAILURE(
        ConnectWorker(i, "rank-" + std::to_string(i), i == kOdd ? "none" : "guard"));
  }
  ExpectOnlyOddOneFailed(Ctl(All("sleep")), "WORKER_NOT_QUIESCIBLE");
  ExpectOthersAsleep();
  ExpectAwakeWithItsBytes(kOdd);
  const Finished woken = Ctl(All("wake"));
  EXPECT_EQ(woken.exit_status, 0) << woken.errors;
  for (int i = 0; i < kDaemons; ++i) ExpectAwakeWithItsBytes(i);
}

TEST_F(FourDaemonsTest, OneHasNoRoom) {
  ASSERT_EQ(*nodes_[kOdd].daemon->Stop(), 0);
  ASSERT_NO_FATAL_FAILURE(StartDaemon(kOdd, {"--host_pool=4MiB"}));
  ASSERT_NO_FATAL_FAILURE(ConnectWorkers());
  ExpectOnlyOddOneFailed(Ctl(All("sleep")), "HOST_POOL_EXHAUSTED");
  ExpectOthersAsleep();
  ExpectAwakeWithItsBytes(kOdd);
}

TEST_F(FourDaemonsTest, AllAreDead) {
  for (Node& node : nodes_) {
    node.daemon->process().Signal(SIGKILL);
    ASSERT_THAT(node.daemon->process().Wait(), IsOk());
  }
  std::vector<std::string> usage = {"usage"};
  for (int i = 0; i < kDaemons; ++i) usage.push_back("--device=host-" + std::to_string(i));
  const Finished asked = Ctl(usage);
  EXPECT_EQ(asked.exit_status, 1);
  for (int i = 0; i < kDaemons; ++i)
    EXPECT_THAT(asked.errors, HasSubstr("host-" + std::to_string(i)));
}

}  // namespace
}  // namespace torpor
