// torporctl watch, and the line of progress of the other commands, against a running torpord.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/terminal.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// The value of a string in a line of JSON.
std::string ValueOf(const std::string& json, const std::string& key) {
  const std::string start = "\"" + key + "\":\"";
  const size_t at = json.find(start);
  if (at == std::string::npos) return "";
  const size_t begin = at + start.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

class WatchTest : public testing::Test {
 protected:
  void SetUp() override { StartDaemon(); }
  void StartDaemon() {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=64MiB", "--safety_reserve=4MiB", "--host_pool=32MiB"});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<ChildProcess> StartCtl(std::vector<std::string> arguments,
                                         const std::string& error_file) {
    ChildProcess::Options options;
    options.command = std::move(arguments);
    options.command.insert(options.command.begin(),
                           std::filesystem::absolute("client/ctl/torporctl"));
    options.environment["TORPOR_RUNTIME_DIR"] = dir_.path();
    options.error_file = error_file;
    auto process = ChildProcess::Start(options);
    EXPECT_THAT(process, IsOk());
    return process.ok() ? *std::move(process) : nullptr;
  }
  std::unique_ptr<ChildProcess> StartWatch(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "watch");
    return StartCtl(std::move(arguments), errors_);
  }
  static int ExitOf(ChildProcess& process) {
    const auto status = process.Wait();
    EXPECT_THAT(status, IsOk());
    return status.ok() ? *status : -1;
  }
  static std::string Line(ChildProcess& process) {
    const auto line = process.ReadLine();
    EXPECT_THAT(line, IsOk());
    return line.ok() ? *line : "";
  }
  // Reads up to the line that has `text`.
  static std::string LineWith(ChildProcess& process, const std::string& text) {
    for (;;) {
      const auto line = process.ReadLine();
      EXPECT_THAT(line, IsOk()) << text;
      if (!line.ok()) return "";
      if (line->find(text) != std::string::npos) return *line;
    }
  }
  std::unique_ptr<WorkerProcess> ConnectWorker(const std::string& name, const std::string& size) {
    auto worker = WorkerProcess::Connect(daemon_->worker_socket(), name);
    EXPECT_THAT(worker, IsOk());
    if (!worker.ok()) return nullptr;
    EXPECT_THAT((*worker)->Allocate("weights", size, 1), IsOk());
    return *std::move(worker);
  }
  Finished Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), std::filesystem::absolute("client/ctl/torporctl"));
    const auto finished = RunProgram(arguments, {{"TORPOR_RUNTIME_DIR", dir_.path()}});
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  }

  TempDir dir_;
  const std::string errors_ = dir_.path() + "/errors";
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(WatchTest, TellsOfWorkersAndOperationsUntilItIsInterrupted) {
  const auto json = StartWatch({"--json"});
  const std::string first = Line(*json);
  const std::string cursor = ValueOf(first, "cursor");
  EXPECT_THAT(cursor, testing::MatchesRegex("[0-9a-f]+:0"));
  EXPECT_THAT(first, Not(HasSubstr("session")));
  auto worker = ConnectWorker("model", "16MiB");
  ASSERT_EQ(Ctl({"sleep", "--level=1", "model"}).exit_status, 0);
  ASSERT_EQ(Ctl({"wake", "model"}).exit_status, 0);
  EXPECT_THAT(Line(*json),
              AllOf(HasSubstr("\"change\":\"SESSION_CHANGE_OPENED\""),
                    HasSubstr("\"worker_id\":\"w-1\""), HasSubstr("\"worker_name\":\"model\"")));
  EXPECT_THAT(LineWith(*json, "OPERATION_CHANGE_ENDED"),
              AllOf(HasSubstr("\"kind\":\"OPERATION_KIND_SLEEP\""),
                    HasSubstr("\"device_bytes\":\"16777216\"")));

  const auto text = StartWatch({"--cursor=" + cursor});
  EXPECT_THAT(Line(*text),
              ContainsRegex("^[0-9:]+\\.[0-9]+ w-1 \\(model\\) session opened, pid [0-9]+$"));
  EXPECT_THAT(Line(*text),
              HasSubstr("op-1 sleep started: 1 segments, 16.00 MiB to free, 16.00 MiB to copy"));
  EXPECT_THAT(LineWith(*text, "copies weights"), HasSubstr(" of 16.00 MiB"));
  EXPECT_THAT(LineWith(*text, "resident"),
              HasSubstr("weights: 1 segments, 16.00 MiB, resident -> offloaded"));
  LineWith(*text, "sleep ended");
  LineWith(*text, "wake ended");
  worker->process().Signal(SIGKILL);
  EXPECT_THAT(Line(*text), HasSubstr("w-1 (model) session closed"));

  for (ChildProcess* const watch : {json.get(), text.get()}) {
    watch->Signal(SIGINT);
    EXPECT_EQ(ExitOf(*watch), 0);
  }
  EXPECT_THAT(ReadFile(errors_), HasSubstr("--cursor=" + cursor.substr(0, 16) + ":"));
}

TEST_F(WatchTest, ShowsOnlyWhatIsWanted) {
  const auto first = StartWatch({"--json", "--timeout=60s"});
  const std::string cursor = ValueOf(Line(*first), "cursor");
  const auto one = ConnectWorker("one", "1MiB");
  const auto two = ConnectWorker("two", "1MiB");
  ASSERT_EQ(Ctl({"sleep", "--all", "--level=1"}).exit_status, 0);
  const auto watch = StartWatch({"--cursor=" + cursor, "--kind=operation,session", "two"});
  EXPECT_THAT(Line(*watch), HasSubstr("w-2 (two) session opened"));
  EXPECT_THAT(Line(*watch), HasSubstr("w-2 (two) op-"));
  EXPECT_THAT(Line(*watch), HasSubstr("sleep committed"));
  EXPECT_THAT(Line(*watch), HasSubstr("sleep ended"));
}

TEST_F(WatchTest, TellsOfReservationsTheQueueAndPressure) {
  const auto first = StartWatch({"--json"});
  const std::string cursor = ValueOf(Line(*first), "cursor");
  const auto watch = StartWatch({"--cursor=" + cursor, "--kind=reservation,queue,pressure"});
  ASSERT_EQ(Ctl({"reserve", "--name=one", "--part=all=60MiB", "--ttl=1h"}).exit_status, 0);
  EXPECT_THAT(Line(*watch), HasSubstr(" r-1 (one) reservation made: 60.00 MiB device, 0 B host"));
  const auto waiting = StartCtl(
      {"reserve", "--wait", "--name=two", "--part=all=8MiB", "--ttl=300ms", "--timeout=60s"},
      errors_);
  LineWith(*watch, "pressure: memory low, 0 B available");
  EXPECT_THAT(LineWith(*watch, " queue entered"),
              HasSubstr(" q-1 (two) queue entered: 8.00 MiB device, 0 B host, 1 waiting"));
  ASSERT_EQ(Ctl({"release", "r-1"}).exit_status, 0);
  EXPECT_EQ(ExitOf(*waiting), 0);
  LineWith(*watch, " r-1 (one) reservation released: 60.00 MiB device, 0 B host");
  LineWith(*watch, " q-1 (two) queue granted: 8.00 MiB device, 0 B host, 0 waiting");
  LineWith(*watch, " r-2 (two) reservation made");
  LineWith(*watch, " r-2 (two) reservation expired: 8.00 MiB device");
}

TEST_F(WatchTest, EndsAfterItsTimeout) {
  const auto watch = StartWatch({"--timeout=200ms"});
  EXPECT_EQ(ExitOf(*watch), 0);
}

TEST_F(WatchTest, EndsWithTheDaemonAndTellsOfTheRestart) {
  const auto watch = StartWatch({"--json"});
  const std::string cursor = ValueOf(Line(*watch), "cursor");
  ASSERT_THAT(daemon_->Stop(), IsOk());
  EXPECT_EQ(ExitOf(*watch), 1);
  EXPECT_THAT(ReadFile(errors_), HasSubstr("DAEMON_STOPPING"));
  StartDaemon();
  const auto again = StartWatch({"--cursor=" + cursor});
  EXPECT_THAT(Line(*again), HasSubstr("events lost: the daemon has restarted"));
}

TEST_F(WatchTest, AWatcherThatIsStoppedDoesNotKeepTheDaemonFromStopping) {
  const auto watch = StartWatch({"--json"});
  Line(*watch);
  watch->Signal(SIGSTOP);
  v1::ReserveRequest reserve;
  reserve.set_name(std::string(63, 'x'));
  reserve.set_host_bytes(4096);
  reserve.mutable_ttl()->set_seconds(60);
  for (int i = 0; i < 3000; ++i) {
    grpc::ClientContext reserving;
    v1::ReserveResponse reserved;
    ASSERT_TRUE(daemon_->stub().Reserve(&reserving, reserve, &reserved).ok());
    grpc::ClientContext releasing;
    v1::ReleaseRequest release;
    release.set_reservation_id(reserved.reservation_id());
    v1::ReleaseResponse released;
    ASSERT_TRUE(daemon_->stub().Release(&releasing, release, &released).ok());
  }
  const TimePoint begun = Clock::Real().Now();
  ASSERT_THAT(daemon_->Stop(), IsOk());
  EXPECT_LT(Clock::Real().Now() - begun, seconds(5));
  watch->Signal(SIGCONT);
  EXPECT_THAT(watch->ReadAll(), IsOk());
  EXPECT_EQ(ExitOf(*watch), 1);
}

TEST_F(WatchTest, WatchesSeveralDaemonsAndGoesOnWithoutOne) {
  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1"});
  ASSERT_THAT(second, IsOk());
  std::filesystem::create_directory(dir_.path() + "/host-2");
  const auto json = StartWatch({"--all", "--json"});
  // Each tells a cursor first.
  std::string both = Line(*json);
  both += Line(*json);
  EXPECT_THAT(both, HasSubstr("{\"device\": \"host-0\", \"target\": \"unix:"));
  EXPECT_THAT(both, HasSubstr("{\"device\": \"host-1\", \"target\": \"unix:"));
  const auto text = StartWatch({"--device=host-1,host-0,host-2"});
  while (ReadFile(errors_).find("host-2") == std::string::npos) {
    ASSERT_THAT(text->Wait(milliseconds(5)), HasReason("STILL_RUNNING"));
  }
  EXPECT_THAT(ReadFile(errors_), HasSubstr("torporctl: host-2: UNAVAILABLE DAEMON_NOT_RUNNING: "));
  second->get()->process().Signal(SIGKILL);
  EXPECT_THAT(LineWith(*json, "\"error\""),
              AllOf(testing::StartsWith("{\"device\": \"host-1\", "), HasSubstr("\"code\":14")));
  while (ReadFile(errors_).find("torporctl: host-1: UNAVAILABLE") == std::string::npos) {
    ASSERT_THAT(text->Wait(milliseconds(5)), HasReason("STILL_RUNNING"));
  }
  // Nothing tells when the one that is left has begun.
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  Result<std::string> line = Unavailable("NONE", "");
  while (!line.ok()) {
    ASSERT_LT(workers.size(), 60u);
    workers.push_back(ConnectWorker("late", "1MiB"));
    line = text->ReadLine(seconds(1));
  }
  EXPECT_THAT(*line, AllOf(testing::StartsWith("host-0  "), HasSubstr("(late) session opened")));
  EXPECT_THAT(LineWith(*json, "\"late\""), testing::StartsWith("{\"device\": \"host-0\", "));
  text->Signal(SIGTERM);
  EXPECT_EQ(ExitOf(*text), 3);
  ASSERT_THAT(daemon_->Stop(), IsOk());
  EXPECT_EQ(ExitOf(*json), 1);
}

TEST_F(WatchTest, RefusesABadCursor) {
  const Finished finished = Ctl({"watch", "--cursor=yesterday"});
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.output, IsEmpty());
  EXPECT_THAT(finished.errors, HasSubstr("INVALID_ARGUMENT BAD_CURSOR"));
  EXPECT_THAT(finished.errors, Not(HasSubstr("--cursor")));
}

TEST_F(WatchTest, ProgressIsDrawnOnATerminalOnly) {
  Terminal terminal;
  const auto worker = ConnectWorker("model", "16MiB");

  const auto sleep = StartCtl({"sleep", "--level=1", "model"}, terminal.path());
  const auto output = sleep->ReadAll();
  ASSERT_THAT(output, IsOk());
  EXPECT_THAT(*output, HasSubstr("Freed 16.00 MiB of device memory."));
  EXPECT_THAT(*output, Not(HasSubstr("\r")));
  EXPECT_EQ(ExitOf(*sleep), 0);
  const std::string cleared = "\r\x1b[K";
  const std::string& text = terminal.written();
  const TimePoint until = Clock::Real().Now() + kPatience;
  while ((text.size() < 2 * cleared.size() ||
          text.compare(text.size() - cleared.size(), cleared.size(), cleared) != 0) &&
         Clock::Real().Now() < until) {
    terminal.Read();
  }
  EXPECT_THAT(text, testing::StartsWith(cleared + "w-1 "));
  EXPECT_THAT(text, ContainsRegex("w-1 [^\r]*  \\[[#.]+\\] +[0-9]+%  [^\r]* of 16.00 MiB"));
  EXPECT_THAT(text, testing::EndsWith(cleared));

  const Finished wake = Ctl({"wake", "model"});
  EXPECT_EQ(wake.exit_status, 0);
  EXPECT_THAT(wake.errors, IsEmpty());
}

}  // namespace
}  // namespace torpor
