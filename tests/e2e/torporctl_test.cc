// torporctl against a running torpord.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class TorporctlTest : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=64MiB", "--safety_reserve=4MiB", "--host_pool=32MiB"});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }
  Finished Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), std::filesystem::absolute("client/ctl/torporctl"));
    const auto finished = RunProgram(arguments, {{"TORPOR_RUNTIME_DIR", dir_.path()}});
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  }
  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(TorporctlTest, FindsTheOnlyDaemon) {
  const Finished usage = Ctl({"usage"});
  EXPECT_EQ(usage.exit_status, 0) << usage.errors;
  EXPECT_THAT(usage.output, HasSubstr("Device host-0 (host memory, host): 64.00 MiB"));
  EXPECT_THAT(usage.output, HasSubstr("No workers."));
  EXPECT_THAT(Ctl({"usage", "--target", daemon_->control_socket()}).output, HasSubstr("host-0"));
  EXPECT_THAT(Ctl({"usage", "--device=host-0"}).output, HasSubstr("host-0"));
}

TEST_F(TorporctlTest, AsksWhichOfSeveral) {
  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1"});
  ASSERT_THAT(second, IsOk());
  const Finished usage = Ctl({"usage"});
  EXPECT_EQ(usage.exit_status, 1);
  EXPECT_THAT(usage.errors, HasSubstr("AMBIGUOUS_DAEMON"));
  EXPECT_THAT(usage.errors, HasSubstr("/host-0/"));
  EXPECT_THAT(usage.errors, HasSubstr("/host-1/"));
  EXPECT_THAT(Ctl({"usage", "--device=host-1"}).output, HasSubstr("Device host-1"));
}

TEST_F(TorporctlTest, MovesWhatSeveralDaemonsHave) {
  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1", "--host_pool=32MiB"});
  ASSERT_THAT(second, IsOk());
  const std::string targets[] = {"--target=" + daemon_->control_socket(),
                                 "--target=" + dir_.path() + "/host-1/control.sock"};
  auto one = WorkerProcess::Connect(daemon_->worker_socket(), "rank-0");
  auto two = WorkerProcess::Connect(dir_.path() + "/host-1/worker.sock", "rank-1");
  ASSERT_TRUE(one.ok() && two.ok());
  const auto first_weights = (*one)->Allocate("weights", "16MiB", 1);
  const auto second_weights = (*two)->Allocate("weights", "8MiB", 2);
  ASSERT_TRUE(first_weights.ok() && second_weights.ok());

  const Finished slept = Ctl({"sleep", "--level=1", "--all", "--all-devices"});
  EXPECT_EQ(slept.exit_status, 0) << slept.errors;
  EXPECT_THAT(slept.output,
              testing::MatchesRegex("DEVICE +WORKER .*\n"
                                    "host-0 +w-1 +rank-0 .* ok\n"
                                    "host-1 +w-1 +rank-1 .* ok\n"
                                    "Freed 24.00 MiB of device memory on 2 devices.\n"));
  const Finished woken = Ctl({"wake", "--all", targets[1], targets[0], "--json"});
  EXPECT_EQ(woken.exit_status, 0) << woken.errors;
  EXPECT_THAT(woken.output,
              testing::MatchesRegex("\\[\n\\{\"device\": \"\", \"target\": "
                                    "\"unix:.*/host-1/control.sock\", \"response\": .*\\},\n"
                                    "\\{\"device\": \"\", \"target\": "
                                    "\"unix:.*/host-0/control.sock\", \"response\": .*\n\\]\n"));
  EXPECT_THAT((*one)->Ask("check " + *first_weights + " 1"), IsOk());
  EXPECT_THAT((*two)->Ask("check " + *second_weights + " 2"), IsOk());

  // The other one's is done all the same.
  const Finished partly = Ctl({"sleep", "--level=1", "rank-1", "--device=host-0,host-1"});
  EXPECT_EQ(partly.exit_status, 3);
  EXPECT_THAT(partly.errors, testing::StartsWith("torporctl: host-0: NOT_FOUND UNKNOWN_WORKER: "));
  EXPECT_THAT(partly.output, testing::ContainsRegex("host-0 .* UNKNOWN_WORKER\n"
                                                    "host-1 +w-1 +rank-1 .* ok\n"));
  EXPECT_THAT(partly.output, HasSubstr("Freed 8.00 MiB of device memory on 1 of 2 devices.\n"));
  const Finished refused = Ctl({"wake", "nobody", "--all-devices", "--json"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.output,
              testing::ContainsRegex("\\{\"device\": \"host-1\", \"target\": \"unix:[^\"]*\", "
                                     "\"error\": \\{\"code\":5,.*UNKNOWN_WORKER"));
  EXPECT_THAT(refused.errors, IsEmpty());
  const Finished usage = Ctl({"usage", "--all"});
  EXPECT_EQ(usage.exit_status, 0);
  EXPECT_THAT(usage.output, testing::ContainsRegex("host-0 +64.00 MiB .* serves\n"
                                                   "host-1 +1.00 GiB .* serves\n"
                                                   "sum +1.06 GiB .* 2  2 of 2 answer\n"));
  EXPECT_THAT(usage.output, testing::ContainsRegex("host-1 +w-1 +rank-1 .* weights "));
  // To look for daemons is not to talk to them.
  EXPECT_THAT(daemon_->log(), testing::Not(HasSubstr("refused")));
  EXPECT_THAT((*second)->log(), testing::Not(HasSubstr("refused")));
}

TEST_F(TorporctlTest, TellsTruthfullyOfDaemonsThatDiedOrRefuse) {
  std::vector<std::unique_ptr<DaemonProcess>> others;
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  for (const char* device : {"host-1", "host-2", "host-3"}) {
    auto daemon = DaemonProcess::Start(dir_.path(), {std::string("--device=") + device});
    ASSERT_THAT(daemon, IsOk());
    others.push_back(*std::move(daemon));
  }
  for (const char* device : {"host-0", "host-1", "host-2", "host-3"}) {
    // What cannot be brought to rest is refused.
    const std::string quiesce = device == std::string("host-1") ? "none" : "guard";
    auto worker = WorkerProcess::Connect(dir_.path() + "/" + device + "/worker.sock",
                                         std::string("on-") + device, quiesce);
    ASSERT_THAT(worker, IsOk());
    ASSERT_THAT((*worker)->Allocate("weights", "4MiB", 1), IsOk());
    workers.push_back(*std::move(worker));
  }
  others[1]->process().Signal(SIGKILL);
  ASSERT_THAT(others[1]->process().Wait(), IsOk());

  const Finished slept = Ctl({"sleep", "--level=1", "--all", "--all-devices"});
  EXPECT_EQ(slept.exit_status, 3);
  EXPECT_THAT(slept.output, testing::ContainsRegex("host-0 +w-1 +on-host-0 .* ok\n"
                                                   "host-1 .* WORKER_NOT_QUIESCIBLE\n"
                                                   "host-2 .* DAEMON_NOT_RUNNING\n"
                                                   "host-3 +w-1 +on-host-3 .* ok\n"));
  EXPECT_THAT(slept.output, HasSubstr("Freed 8.00 MiB of device memory on 2 of 4 devices.\n"));
  EXPECT_THAT(slept.errors, HasSubstr("host-1: FAILED_PRECONDITION WORKER_NOT_QUIESCIBLE: "));
  EXPECT_THAT(slept.errors, HasSubstr("host-2: UNAVAILABLE DAEMON_NOT_RUNNING: "));
  EXPECT_THAT(Ctl({"usage", "--all"}).output,
              testing::ContainsRegex("host-0 +w-1 .* weights +1 +0 B +4.00 MiB .*\n"
                                     "host-1 +w-1 .* weights +1 +4.00 MiB +0 B .*\n"
                                     "host-3 +w-1 .* weights +1 +0 B +4.00 MiB "));

  const Finished woken = Ctl({"wake", "--all", "--device=host-2,host-3", "--json"});
  EXPECT_EQ(woken.exit_status, 3);
  EXPECT_THAT(woken.output, HasSubstr("\"reason\":\"DAEMON_NOT_RUNNING\""));
  EXPECT_THAT(woken.output, HasSubstr("\"device_bytes\":\"4194304\""));
  EXPECT_EQ(Ctl({"usage", "--device=host-2,host-9"}).exit_status, 1);
}

TEST_F(TorporctlTest, Health) {
  const Finished serving = Ctl({"health"});
  EXPECT_EQ(serving.exit_status, 0) << serving.errors;
  EXPECT_EQ(serving.output, "SERVING\n");
  EXPECT_EQ(Ctl({"health", "--service=torpor.alive"}).output, "SERVING\n");
  const Finished unprotected = Ctl({"health", "--service=torpor.keeper"});
  EXPECT_EQ(unprotected.exit_status, 1);
  EXPECT_THAT(unprotected.output, testing::StartsWith("NOT_SERVING NO_KEEPER: "));
  EXPECT_THAT(Ctl({"health", "--json"}).output, HasSubstr("\"status\": \"SERVING\""));
  const Finished unknown = Ctl({"health", "--service=dreams"});
  EXPECT_EQ(unknown.exit_status, 1);
  EXPECT_EQ(unknown.errors,
            "torporctl: NOT_FOUND CALL_FAILED: service name unknown\n  target  unix:" +
                daemon_->control_socket() + "\n");

  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1"});
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(Ctl({"health", "--all"}).exit_status, 0);
  (*second)->process().Signal(SIGKILL);
  ASSERT_THAT((*second)->process().Wait(), IsOk());
  const Finished one = Ctl({"health", "--all"});
  EXPECT_EQ(one.exit_status, 3);
  EXPECT_THAT(one.output, testing::MatchesRegex("DEVICE +HEALTH +WHY NOT\n"
                                                "host-0 +SERVING\n"
                                                "host-1 +- +DAEMON_NOT_RUNNING: .*\n"));
  // One that stands still does not answer.
  daemon_->process().Signal(SIGSTOP);
  const Finished stuck = Ctl({"health", "--device=host-0", "--timeout=300ms"});
  EXPECT_EQ(stuck.exit_status, 1);
  EXPECT_THAT(stuck.errors, testing::StartsWith("torporctl: DEADLINE_EXCEEDED CALL_DEADLINE: "));
  daemon_->process().Signal(SIGCONT);
}

TEST_F(TorporctlTest, OthersThanRootLookInBothFolders) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  // Where nobody else's rights are needed.
  std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
  const std::string ctl = dir_.path() + "/torporctl";
  std::filesystem::copy_file(std::filesystem::absolute("client/ctl/torporctl"), ctl);
  const std::string own = dir_.path() + "/run/torpor";
  std::filesystem::create_directories(own);
  const auto run = [&](const std::string& xdg) {
    const auto finished =
        RunProgram({"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                    "/usr/bin/env", "-u", "TORPOR_RUNTIME_DIR", ctl, "usage"},
                   {{"XDG_RUNTIME_DIR", xdg}});
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  };
  auto daemon = DaemonProcess::Start(own, {"--device=host-7", "--socket_mode=0666"});
  ASSERT_THAT(daemon, IsOk());
  const Finished found = run(dir_.path() + "/run");
  EXPECT_EQ(found.exit_status, 0) << found.errors;
  EXPECT_THAT(found.output, HasSubstr("Device host-7 "));
  if (std::filesystem::exists("/run/torpor")) return;
  const Finished none = run("/nowhere");
  EXPECT_EQ(none.exit_status, 1);
  EXPECT_THAT(none.errors,
              testing::StartsWith("torporctl: UNAVAILABLE DAEMON_NOT_RUNNING: no daemon "
                                  "listens under /nowhere/torpor or /run/torpor\n"));
}

TEST_F(TorporctlTest, SaysWhyItCannotConnect) {
  const Finished nobody = Ctl({"usage", "--target=127.0.0.1:1"});
  EXPECT_EQ(nobody.exit_status, 1);
  EXPECT_THAT(nobody.errors, testing::StartsWith("torporctl: UNAVAILABLE DAEMON_UNREACHABLE: "));
  EXPECT_THAT(nobody.errors, HasSubstr("\n  target  127.0.0.1:1\n"));
  EXPECT_THAT(Ctl({"usage", "--target=127.0.0.1:1", "--json"}).errors,
              HasSubstr("\"reason\": \"DAEMON_UNREACHABLE\""));
  if (::geteuid() != 0) return;  // only root can be somebody else
  std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
  const std::string ctl = dir_.path() + "/torporctl";
  std::filesystem::copy_file(std::filesystem::absolute("client/ctl/torporctl"), ctl);
  const auto run = [&](const std::string& verb) {
    const auto finished =
        RunProgram({"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", ctl,
                    verb, "--target=" + daemon_->control_socket()});
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? finished->errors : "";
  };
  ASSERT_EQ(::chown(daemon_->control_socket().c_str(), 0, 65533), 0);
  for (const char* verb : {"usage", "health", "watch"}) {
    const std::string errors = run(verb);
    EXPECT_THAT(errors, testing::StartsWith("torporctl: PERMISSION_DENIED ERRNO_EACCES: connect "));
    EXPECT_THAT(errors, HasSubstr("for the group 65533: join it"));
    EXPECT_THAT(errors, HasSubstr("\n  group  65533\n"));
  }
  std::filesystem::permissions(daemon_->control_socket(), std::filesystem::perms(0600));
  EXPECT_THAT(run("usage"), HasSubstr("for its owner alone"));
}

TEST_F(TorporctlTest, CtrlCCancelsAtSeveralDaemons) {
  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1"});
  auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model");
  ASSERT_TRUE(second.ok() && worker.ok());
  ASSERT_THAT((*worker)->Allocate("weights", "16MiB", 1), IsOk());
  ASSERT_THAT((*worker)->Ask("guard_begin"), IsOk());
  TempDir out;
  ChildProcess::Options options;
  options.command = {std::filesystem::absolute("client/ctl/torporctl"), "sleep", "--level=1",
                     "--all", "--all-devices"};
  options.environment = {{"TORPOR_RUNTIME_DIR", dir_.path()}};
  options.error_file = out.path() + "/errors";
  auto ctl = ChildProcess::Start(options);
  ASSERT_THAT(ctl, IsOk());
  while (daemon_->Usage()->workers(0).operation_id().empty()) {
    ASSERT_THAT((*ctl)->Wait(milliseconds(5)), HasReason("STILL_RUNNING"));
  }
  (*ctl)->Signal(SIGINT);
  const auto status = (*ctl)->Wait();
  ASSERT_THAT(status, IsOk());
  // The other one has nothing to put to sleep, and has said so unless the signal was quicker.
  EXPECT_THAT(*status, testing::AnyOf(3, 1));
  const std::string errors = ReadFile(options.error_file);
  EXPECT_THAT(errors, testing::ContainsRegex("torporctl: host-0: CANCELLED"));
  EXPECT_THAT(errors, testing::ContainsRegex("w-1 +model +[0-9]+ +guard +weights +1 +16.00 MiB"));
  ASSERT_THAT((*worker)->Ask("guard_end"), IsOk());
}

TEST_F(TorporctlTest, UsageSaysThatAnOperationIsStuck) {
  EXPECT_THAT(Ctl({"usage"}).output, testing::Not(HasSubstr("NOT ")));
  auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "16MiB", 1), IsOk());
  (*worker)->process().Signal(SIGSTOP);
  EXPECT_EQ(Ctl({"sleep", "--level=1", "model", "--timeout=500ms"}).exit_status, 1);
  // It is stuck a while after its deadline.
  while (Ctl({"health"}).exit_status == 0) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_THAT(Ctl({"usage"}).output,
              testing::ContainsRegex("\nNOT SERVING: OPERATION_STUCK: .*w-1"));
  EXPECT_THAT(Ctl({"usage", "--all-devices"}).output, HasSubstr(" OPERATION_STUCK\n"));
  (*worker)->process().Signal(SIGCONT);
}

TEST_F(TorporctlTest, SaysSoWhenNobodyIsThere) {
  ASSERT_EQ(*daemon_->Stop(), 0);
  const Finished usage = Ctl({"usage"});
  EXPECT_EQ(usage.exit_status, 1);
  EXPECT_THAT(usage.errors, HasSubstr("DAEMON_NOT_RUNNING"));
}

TEST_F(TorporctlTest, WaitsForADaemonThatIsSlowToAnswer) {
  daemon_->process().Signal(SIGSTOP);
  std::thread goes_on([&] {
    std::this_thread::sleep_for(milliseconds(500));
    daemon_->process().Signal(SIGCONT);
  });
  const Finished usage = Ctl({"usage"});
  goes_on.join();
  EXPECT_EQ(usage.exit_status, 0) << usage.errors;
}

TEST_F(TorporctlTest, ReservesAndReleases) {
  const Finished reserved = Ctl({"reserve", "--name=model", "--part=weights=40MiB",
                                 "--part=kv_cache=8MiB", "--host-bytes=16MiB", "--ttl=1m"});
  EXPECT_EQ(reserved.exit_status, 0) << reserved.errors;
  EXPECT_THAT(reserved.output,
              testing::StartsWith("r-1: 48.00 MiB of the 60.00 MiB available, expires in "));
  const Finished usage = Ctl({"usage"});
  EXPECT_THAT(usage.output, HasSubstr("weights 40.00 MiB, kv_cache 8.00 MiB"));

  const Finished refused = Ctl({"reserve", "--name=other", "--part=weights=40MiB", "--ttl=1m"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.output, IsEmpty());
  EXPECT_THAT(refused.errors, HasSubstr("RESOURCE_EXHAUSTED DEVICE_BUDGET_EXHAUSTED: "));
  EXPECT_THAT(refused.errors, HasSubstr("41943040 (40.00 MiB)"));

  EXPECT_EQ(Ctl({"release", "r-1"}).output, "Came free: 48.00 MiB device, 16.00 MiB host.\n");
  EXPECT_THAT(Ctl({"release", "r-1"}).errors, HasSubstr("RESERVATION_RELEASED"));
}

TEST_F(TorporctlTest, ReservesInTurnAndRenews) {
  ASSERT_EQ(Ctl({"reserve", "--name=all", "--part=weights=60MiB", "--ttl=500ms"}).exit_status, 0);
  const Finished waited = Ctl({"reserve", "--name=next", "--part=weights=40MiB", "--ttl=1m",
                               "--wait", "--hold", "--keep", "--timeout=30s"});
  EXPECT_EQ(waited.exit_status, 0) << waited.errors;
  EXPECT_THAT(waited.output, testing::StartsWith("r-2: 40.00 MiB"));
  const Finished renewed = Ctl({"renew", "r-2", "--ttl=10m"});
  EXPECT_EQ(renewed.exit_status, 0) << renewed.errors;
  EXPECT_THAT(renewed.output, testing::StartsWith("Expires in "));
  EXPECT_THAT(Ctl({"usage"}).output, HasSubstr("hold, keep"));
  const Finished late = Ctl(
      {"reserve", "--name=late", "--part=weights=40MiB", "--ttl=1m", "--wait", "--timeout=500ms"});
  EXPECT_EQ(late.exit_status, 1);
  EXPECT_THAT(late.errors, HasSubstr("DEADLINE_EXCEEDED RESERVATION_DEADLINE: "));
  EXPECT_THAT(Ctl({"renew", "r-1", "--ttl=10m"}).errors, HasSubstr("RESERVATION_EXPIRED"));
}

TEST_F(TorporctlTest, SleepsAndWakes) {
  auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  const auto weights = (*worker)->Allocate("weights", "16MiB", 1);
  ASSERT_THAT(weights, IsOk());
  const Finished slept = Ctl({"sleep", "--level=1", "model"});
  EXPECT_EQ(slept.exit_status, 0) << slept.errors;
  EXPECT_THAT(slept.output, HasSubstr("Freed 16.00 MiB of device memory."));
  EXPECT_THAT(Ctl({"usage"}).output,
              testing::ContainsRegex("w-1 +model +[0-9]+ +guard +weights +1 +0 B +16.00 MiB"));
  const Finished woken = Ctl({"wake", "--all"});
  EXPECT_EQ(woken.exit_status, 0) << woken.errors;
  EXPECT_THAT(woken.output, HasSubstr("Took 16.00 MiB of device memory."));
  EXPECT_THAT((*worker)->Ask("check " + *weights + " 1"), IsOk());
}

TEST_F(TorporctlTest, CtrlCCancelsAndSaysWhatBecameOfIt) {
  auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "16MiB", 1), IsOk());
  ASSERT_THAT((*worker)->Ask("guard_begin"), IsOk());
  TempDir out;
  ChildProcess::Options options;
  options.command = {std::filesystem::absolute("client/ctl/torporctl"), "sleep", "--level=1",
                     "model"};
  options.environment = {{"TORPOR_RUNTIME_DIR", dir_.path()}};
  options.error_file = out.path() + "/errors";
  auto ctl = ChildProcess::Start(options);
  ASSERT_THAT(ctl, IsOk());
  while (daemon_->Usage()->workers(0).operation_id().empty()) {
    ASSERT_THAT((*ctl)->Wait(milliseconds(5)), HasReason("STILL_RUNNING"));
  }
  (*ctl)->Signal(SIGINT);
  const auto status = (*ctl)->Wait();
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(*status, 1);
  const std::string errors = ReadFile(options.error_file);
  EXPECT_THAT(errors, HasSubstr("torporctl: cancelled\n"));
  EXPECT_THAT(errors, testing::ContainsRegex("w-1 +model +[0-9]+ +guard +weights +1 +16.00 MiB"));
  ASSERT_THAT((*worker)->Ask("guard_end"), IsOk());
  EXPECT_EQ(Ctl({"sleep", "--level=1", "model"}).exit_status, 0);
}

TEST_F(TorporctlTest, ARequestIdRepeatsAnAnswer) {
  const std::vector<std::string> reserve = {"reserve", "--name=model", "--part=weights=40MiB",
                                            "--ttl=1m", "--request-id=try-1"};
  const Finished first = Ctl(reserve);
  EXPECT_EQ(first.exit_status, 0) << first.errors;
  EXPECT_THAT(first.errors, IsEmpty());
  const Finished again = Ctl(reserve);
  EXPECT_EQ(again.exit_status, 0);
  EXPECT_THAT(again.output, testing::StartsWith("r-1: 40.00 MiB of the 60.00 MiB available"));
  EXPECT_THAT(again.errors, HasSubstr("the answer to an earlier call"));
  EXPECT_THAT(Ctl({"release", "r-1", "--request-id=try-1"}).errors, HasSubstr("REQUEST_ID_REUSED"));
}

TEST_F(TorporctlTest, PartialSuccessHasItsOwnExitStatus) {
  auto willing = WorkerProcess::Connect(daemon_->worker_socket(), "willing");
  auto unwilling = WorkerProcess::Connect(daemon_->worker_socket(), "unwilling", "none");
  ASSERT_TRUE(willing.ok() && unwilling.ok());
  ASSERT_THAT((*willing)->Allocate("weights", "4MiB", 1), IsOk());
  ASSERT_THAT((*unwilling)->Allocate("weights", "4MiB", 1), IsOk());
  const Finished slept = Ctl({"sleep", "--all", "--policy=weights=offload"});
  EXPECT_EQ(slept.exit_status, 3) << slept.errors;
  EXPECT_THAT(slept.output, testing::ContainsRegex("w-1 +willing .* ok\n"));
  EXPECT_THAT(slept.output, testing::ContainsRegex("w-2 +unwilling .* WORKER_NOT_QUIESCIBLE\n"));
  ASSERT_THAT((*unwilling)->Ask("sleep_endpoint POST http://localhost:8000/sleep"), IsOk());
  EXPECT_THAT(Ctl({"usage"}).output,
              testing::ContainsRegex("w-2 +unwilling +POST http://localhost:8000/sleep\n"));
}

TEST_F(TorporctlTest, Json) {
  const Finished usage = Ctl({"usage", "--json"});
  EXPECT_EQ(usage.exit_status, 0);
  EXPECT_THAT(usage.output, HasSubstr("\"total_bytes\": \"67108864\""));
  const Finished refused = Ctl({"sleep", "--json", "--level=1", "nobody"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.errors, HasSubstr("\"reason\": \"UNKNOWN_WORKER\""));
  EXPECT_THAT(Ctl({"usage", "--device=nobody", "--json"}).errors,
              HasSubstr("\"reason\": \"DAEMON_NOT_RUNNING\""));
  EXPECT_THAT(Ctl({"dance", "--json"}).errors, HasSubstr("\"reason\": \"BAD_COMMAND\""));
}

TEST_F(TorporctlTest, ErrorsNameTheReason) {
  const Finished sleep = Ctl({"sleep", "--level=1"});
  EXPECT_EQ(sleep.exit_status, 1);
  EXPECT_THAT(sleep.errors, testing::StartsWith("torporctl: INVALID_ARGUMENT EMPTY_SELECTOR: "));
  EXPECT_THAT(Ctl({"sleep", "--all", "--level=3"}).errors, HasSubstr("BAD_LEVEL"));
  EXPECT_THAT(Ctl({"wake", "--tag=weights"}).errors, HasSubstr("NOTHING_SELECTED"));
}

TEST_F(TorporctlTest, AnUpgradeNeedsAKeeper) {
  const Finished refused = Ctl({"upgrade"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.errors, testing::StartsWith("torporctl: FAILED_PRECONDITION NO_KEEPER: "));
  EXPECT_THAT(refused.output, IsEmpty());
  EXPECT_THAT(Ctl({"upgrade", "--json"}).errors, HasSubstr("\"reason\": \"NO_KEEPER\""));
  EXPECT_EQ(Ctl({"upgrade", "--all-devices"}).exit_status, 2);
  EXPECT_EQ(Ctl({"usage"}).exit_status, 0);
}

TEST(TorporctlUpgradeTest, AnotherDaemonServesAndWorkersKeepTheirMemory) {
  const TempDir dir;
  KeeperProcess keeper(dir.path(),
                       {"--host_device_memory=64MiB", "--host_pool=64MiB", "--safety_reserve=0",
                        "--pool_memory=memfd", "--reconnect_grace=60s"});
  ASSERT_THAT(keeper.Start(), IsOk());
  const auto worker = WorkerProcess::Connect(keeper.worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  const auto weights = (*worker)->Allocate("weights", "8MiB", 1);
  const auto awake = (*worker)->Allocate("kept", "4MiB", 2);
  ASSERT_TRUE(weights.ok() && awake.ok());
  ASSERT_THAT((*worker)->Ask("sleep 1 weights"), IsOk());
  const auto upgrade = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {std::filesystem::absolute("client/ctl/torporctl"), "upgrade"});
    const auto finished = RunProgram(flags, {{"TORPOR_RUNTIME_DIR", dir.path()}});
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  };
  const auto first = keeper.daemon();
  const Finished told = upgrade({});
  EXPECT_EQ(told.exit_status, 0) << told.errors << keeper.log();
  EXPECT_THAT(told.output,
              testing::MatchesRegex("From [0-9.]+ to [0-9.]+ in [0-9]+ ms, 1 workers back.\n"));
  const auto second = keeper.daemon();
  const Finished json = upgrade({"--json"});
  EXPECT_EQ(json.exit_status, 0) << json.errors << keeper.log();
  EXPECT_THAT(json.output, HasSubstr("\"start_time\": "));
  const auto third = keeper.daemon();
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_NE(*first, *second);
  EXPECT_NE(*second, *third);
  // Everyone is back.
  const auto usage = keeper.Usage();
  ASSERT_THAT(usage, IsOk());
  ASSERT_EQ(usage->workers_size(), 1);
  EXPECT_FALSE(usage->workers(0).awaited());
  EXPECT_THAT((*worker)->Ask("check " + *awake + " 2"), IsOk());
  EXPECT_THAT((*worker)->Ask("wake"), IsOk());
  EXPECT_THAT((*worker)->Ask("check " + *weights + " 1"), IsOk());

  // While there is no keeper.
  keeper.KillKeeper();
  ASSERT_THAT(keeper.AwaitUsage([](const auto& now) { return now.protection().code() != 0; }),
              IsOk());
  const Finished refused = upgrade({});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.errors, testing::StartsWith("torporctl: UNAVAILABLE KEEPER_GONE: "));
  const auto usage_of = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {std::filesystem::absolute("client/ctl/torporctl"), "usage"});
    const auto finished = RunProgram(flags, {{"TORPOR_RUNTIME_DIR", dir.path()}});
    return finished.ok() ? finished->output : "";
  };
  EXPECT_THAT(usage_of({}), HasSubstr("\nNOT PROTECTED: KEEPER_GONE: "));
  EXPECT_THAT(usage_of({"--all-devices"}), HasSubstr(" serves, KEEPER_GONE\n"));
  EXPECT_THAT((*worker)->Ask("check " + *weights + " 1"), IsOk());
}

TEST_F(TorporctlTest, BadCommandLines) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"dance"},
                                                    {"usage", "--no-such-flag"},
                                                    {"sleep", "--ttl=1s"},
                                                    {}}) {
    const Finished finished = Ctl(arguments);
    EXPECT_EQ(finished.exit_status, 2);
    EXPECT_THAT(finished.errors, testing::StartsWith("torporctl: "));
  }
  EXPECT_EQ(Ctl({"--help"}).exit_status, 0);
  EXPECT_THAT(Ctl({"--version"}).output, testing::MatchesRegex("torporctl [0-9.]+\n"));
}

}  // namespace
}  // namespace torpor
