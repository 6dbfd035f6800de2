// torporctl top on a real terminal, against a running torpord.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/ctl/text_width.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
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
using testing::Not;

// Without escape sequences.
std::string Plain(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x1b') {
      if (text[i] != '\r') plain += text[i];
      continue;
    }
    while (i + 1 < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) == 0) ++i;
  }
  return plain;
}

// A torporctl top that runs on a terminal of its own.
class TopProcess {
 public:
  TopProcess(const std::string& runtime_dir, const std::vector<std::string>& arguments,
             const char* no_color = nullptr) {
    const std::string path = std::filesystem::absolute("client/ctl/torporctl");
    std::vector<const char*> command = {path.c_str(), "top"};
    for (const std::string& argument : arguments) command.push_back(argument.c_str());
    command.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("TORPOR_RUNTIME_DIR", runtime_dir.c_str(), 1);
    if (no_color != nullptr) ::setenv("NO_COLOR", no_color, 1);
    if (!terminal_.Enter()) ::_exit(126);
    ::execv(path.c_str(), const_cast<char**>(command.data()));
    ::_exit(127);
  }
  ~TopProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  TopProcess(const TopProcess&) = delete;
  TopProcess& operator=(const TopProcess&) = delete;

  const Terminal& terminal() const { return terminal_; }
  const std::string& written() const { return terminal_.written(); }
  void Signal(int signal) { ::kill(pid_, signal); }

  // The last frame that is drawn wholly, as plain text.
  std::string Frame() const {
    const size_t end = written().rfind("\x1b[J");
    const size_t begin = end == std::string::npos ? end : written().rfind("\x1b[H", end);
    return begin == std::string::npos ? "" : Plain(written().substr(begin, end - begin));
  }
  // Reads until the last frame matches; that frame, empty if it takes too long.
  std::string Await(const testing::Matcher<std::string>& wanted) {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (Clock::Real().Now() < until) {
      std::string frame = Frame();
      if (wanted.Matches(frame)) return frame;
      terminal_.Read();
    }
    ADD_FAILURE() << "not seen, but\n" << Frame();
    return "";
  }
  // The exit status, or 128 + the signal.
  int Wait() {
    int status = 0;
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::Real().Now() > until) return -1;
      terminal_.Read();
    }
    pid_ = -1;
    while (terminal_.Read()) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  Terminal terminal_;
  pid_t pid_ = -1;
};

void ExpectFits(const std::string& frame, size_t columns, size_t rows) {
  std::istringstream lines(frame);
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(ctl::TextWidth(line), columns) << line;
  }
  EXPECT_LE(count, rows);
}

class TopTest : public testing::Test {
 protected:
  void SetUp() override { StartDaemon(); }
  void StartDaemon(const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {"--host_device_memory=64MiB", "--safety_reserve=4MiB",
                                      "--host_pool=32MiB"};
    flags.insert(flags.end(), more.begin(), more.end());
    auto daemon = DaemonProcess::Start(dir_.path(), flags);
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<WorkerProcess> ConnectWorker(const std::string& name) {
    auto worker = WorkerProcess::Connect(daemon_->worker_socket(), name);
    EXPECT_THAT(worker, IsOk());
    if (!worker.ok()) return nullptr;
    EXPECT_THAT((*worker)->Allocate("weights", "16MiB", 1), IsOk());
    return *std::move(worker);
  }
  void Sleep() {
    grpc::ClientContext context;
    v1::SleepRequest request;
    request.mutable_selector()->set_all(true);
    request.set_level(1);
    v1::SleepResponse response;
    EXPECT_TRUE(daemon_->stub().Sleep(&context, request, &response).ok());
  }
  Finished Once(std::vector<std::string> arguments,
                std::map<std::string, std::string> environment = {}) {
    arguments.insert(arguments.begin(),
                     {std::filesystem::absolute("client/ctl/torporctl"), "top", "--once"});
    environment["TORPOR_RUNTIME_DIR"] = dir_.path();
    const auto finished = RunProgram(arguments, environment);
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  }
  // A daemon, in place of the one before, in which `user` alone has a role. It serves metrics.
  void StartDaemonFor(const std::string& role, uid_t user = ::geteuid()) {
    daemon_.reset();
    const std::string file = dir_.path() + "/access.conf";
    std::ofstream(file) << "grant { role: " << role << " uid: " << user << " }\n";
    StartDaemon({"--access=" + file, "--metrics=127.0.0.1:0"});
  }
  // The metric of calls that failed.
  int Failed(const std::string& call) {
    const std::string log = daemon_->log();
    const size_t at = log.rfind("http://127.0.0.1:");
    if (at == std::string::npos) return -1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(log.substr(at + 17))));
    const UniqueFd http(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string get = "GET /metrics HTTP/1.0\r\n\r\n";
    if (::connect(http.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::write(http.get(), get.data(), get.size()) != static_cast<ssize_t>(get.size())) {
      return -1;
    }
    std::string page;
    char part[4096];
    for (ssize_t n = 0; (n = ::read(http.get(), part, sizeof part)) > 0;) page.append(part, n);
    const std::string series = "request=\"" + call + "\",result=\"error\"} ";
    const size_t value = page.find(series);
    if (page.find("torpor_requests_total") == std::string::npos) return -1;
    return value == std::string::npos ? 0 : std::stoi(page.substr(value + series.size()));
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(TopTest, ShowsWhatHappensUntilQ) {
  const auto worker = ConnectWorker("model");
  TopProcess top(dir_.path(), {});
  const std::string first = top.Await(ContainsRegex("w-1 +model +weights +resident +\\[#"));
  ExpectFits(first, 80, 24);
  EXPECT_THAT(first, AllOf(HasSubstr("torporctl top  SERVING"), HasSubstr("NO_KEEPER"),
                           HasSubstr("# resident 16.0M")));
  EXPECT_TRUE(top.terminal().IsRaw());
  EXPECT_THAT(top.written(), AllOf(testing::StartsWith("\x1b[?1049h"), HasSubstr("\x1b[32m")));
  Sleep();
  // What happens is seen though the view began before or after its event.
  const std::string asleep = top.Await(ContainsRegex("w-1 +model +weights +offloaded +\\[="));
  ExpectFits(asleep, 80, 24);
  EXPECT_THAT(asleep, HasSubstr("# resident 0 "));
  top.Await(HasSubstr("sleep ended"));
  top.terminal().Resize(60, 7);
  const std::string small = top.Await(HasSubstr("  availa~\n"));
  ExpectFits(small, 60, 7);
  EXPECT_FALSE(top.terminal().IsAsBefore());
  top.terminal().Type("xq");
  EXPECT_EQ(top.Wait(), 0);
  EXPECT_TRUE(top.terminal().IsAsBefore());
  EXPECT_THAT(top.written(), testing::EndsWith("\x1b[?7h\x1b[?25h\x1b[m\x1b[?1049l"));
}

TEST_F(TopTest, SignalsAndCtrlCRestoreTheTerminal) {
  for (const int signal : {SIGTERM, SIGHUP, 0}) {
    TopProcess top(dir_.path(), {"--interval=100ms"}, "1");
    top.Await(HasSubstr("No workers."));
    EXPECT_TRUE(top.terminal().IsRaw());
    if (signal != 0) {
      top.Signal(signal);
    } else {
      top.terminal().Type("\x03");
    }
    EXPECT_EQ(top.Wait(), 0);
    EXPECT_TRUE(top.terminal().IsAsBefore());
    EXPECT_THAT(top.written(), testing::EndsWith("\x1b[?1049l"));
    EXPECT_THAT(top.written(), Not(HasSubstr("\x1b[32m")));
  }
}

TEST_F(TopTest, LeavesTheScreenWhileItIsStopped) {
  TopProcess top(dir_.path(), {});
  top.Await(HasSubstr("No workers."));
  top.terminal().Type("\x1a");
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (!top.terminal().IsAsBefore() && Clock::Real().Now() < until) ::usleep(1000);
  EXPECT_TRUE(top.terminal().IsAsBefore());
  top.Signal(SIGCONT);
  while (!top.terminal().IsRaw() && Clock::Real().Now() < until) {
    ::usleep(1000);
    // It may not have stopped yet.
    top.Signal(SIGCONT);
  }
  EXPECT_TRUE(top.terminal().IsRaw());
  top.terminal().Type("q");
  EXPECT_EQ(top.Wait(), 0);
  EXPECT_TRUE(top.terminal().IsAsBefore());
}

TEST_F(TopTest, GoesOnWithTheNextDaemon) {
  TopProcess top(dir_.path(), {});
  top.Await(HasSubstr("No workers."));
  daemon_->process().Signal(SIGKILL);
  top.Await(HasSubstr("NOT ANSWERING DAEMON_NOT_RUNNING, as of "));
  ASSERT_THAT(daemon_->process().Wait(), IsOk());
  StartDaemon();
  top.Await(HasSubstr("torporctl top  SERVING"));
  const auto worker = ConnectWorker("again");
  top.Await(
      AllOf(ContainsRegex("w-1 +again +weights +resident"), HasSubstr("(again) session opened")));
  top.terminal().Type("q");
  EXPECT_EQ(top.Wait(), 0);
}

TEST_F(TopTest, AsksRarelyForWhatIsRefused) {
  StartDaemonFor("WORKER");
  TopProcess top(dir_.path(), {"--interval=100ms"});
  const std::string told = "no events: ACCESS_DENIED: Watch needs the role OPERATOR or READER; ";
  top.Await(AllOf(HasSubstr("torporctl top  SERVING"), HasSubstr(told)));
  // Usage goes on meanwhile.
  const auto worker = ConnectWorker("mine");
  top.Await(AllOf(ContainsRegex("w-1 +mine +weights +resident"), HasSubstr(told)));
  std::this_thread::sleep_for(seconds(2));
  EXPECT_EQ(Failed("Watch"), 1);
  // Another daemon is asked anew.
  StartDaemonFor("OPERATOR");
  top.Await(AllOf(HasSubstr("torporctl top  SERVING"), Not(HasSubstr("no events"))));
  const auto again = ConnectWorker("again");
  top.Await(HasSubstr("(again) session opened"));
  EXPECT_EQ(Failed("Watch"), 0);
}

TEST_F(TopTest, AsksRarelyWhereItHasNoRole) {
  StartDaemonFor("OPERATOR", ::geteuid() + 1);
  TopProcess top(dir_.path(), {"--interval=100ms"});
  top.Await(AllOf(HasSubstr("torporctl top  REFUSES ACCESS_DENIED"),
                  HasSubstr("Usage needs the role OPERATOR or WORKER or READER")));
  std::this_thread::sleep_for(seconds(2));
  const int refused = Failed("Usage");
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 8) << "of 20, one each 100 ms";
}

TEST_F(TopTest, SeveralDaemons) {
  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1"});
  ASSERT_THAT(second, IsOk());
  const auto worker = ConnectWorker("model");
  TopProcess top(dir_.path(), {});
  const std::string frame = top.Await(AllOf(HasSubstr("2 daemons, 2 serve"),
                                            ContainsRegex("host-0 +\\[.*\n *w-1 +model +weights"),
                                            ContainsRegex("host-1 +\\[")));
  ExpectFits(frame, 80, 24);
  (*second)->process().Signal(SIGKILL);
  top.Await(HasSubstr("2 daemons, 1 serve"));
  Sleep();
  top.Await(ContainsRegex("w-1 +model +weights +offloaded"));
}

TEST_F(TopTest, PrintsOneFrame) {
  const auto worker = ConnectWorker("model");
  const Finished once = Once({}, {{"COLUMNS", "60"}, {"LINES", "20"}});
  EXPECT_EQ(once.exit_status, 0) << once.errors;
  EXPECT_THAT(once.output, AllOf(ContainsRegex("w-1 +model +weights +resident +\\[#+\\]"),
                                 Not(HasSubstr("\x1b"))));
  ExpectFits(once.output, 60, 20);
  EXPECT_THAT(Once({"--json"}).output,
              testing::StartsWith("[\n{\"device\": \"host-0\", \"target\": \"unix:"));
  daemon_->process().Signal(SIGSTOP);
  EXPECT_EQ(Once({"--timeout=300ms"}).exit_status, 1);
  daemon_->process().Signal(SIGCONT);
}

}  // namespace
}  // namespace torpor
