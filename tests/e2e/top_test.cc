// torporctl top on a real terminal, against a running torpord.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <cctype>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/ctl/text_width.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
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
    winsize size{24, 80, 0, 0};
    int terminal = -1;
    int program = -1;
    EXPECT_EQ(::openpty(&terminal, &program, nullptr, nullptr, &size), 0);
    terminal_ = UniqueFd(terminal);
    program_ = UniqueFd(program);
    EXPECT_EQ(::tcgetattr(program, &before_), 0);
    const std::string path = std::filesystem::absolute("client/ctl/torporctl");
    std::vector<const char*> command = {path.c_str(), "top"};
    for (const std::string& argument : arguments) command.push_back(argument.c_str());
    command.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("TORPOR_RUNTIME_DIR", runtime_dir.c_str(), 1);
    if (no_color != nullptr) ::setenv("NO_COLOR", no_color, 1);
    if (::login_tty(program) != 0) ::_exit(126);
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

  const std::string& written() const { return written_; }
  void Type(const std::string& keys) {
    EXPECT_EQ(::write(terminal_.get(), keys.data(), keys.size()),
              static_cast<ssize_t>(keys.size()));
  }
  void Signal(int signal) { ::kill(pid_, signal); }
  void Resize(unsigned short columns, unsigned short rows) {
    const winsize size{rows, columns, 0, 0};
    EXPECT_EQ(::ioctl(terminal_.get(), TIOCSWINSZ, &size), 0);
  }
  // Whether keys come at once and are not shown.
  bool IsRaw() const {
    termios now{};
    EXPECT_EQ(::tcgetattr(program_.get(), &now), 0);
    return (now.c_lflag & (ICANON | ECHO)) == 0;
  }
  bool IsAsBefore() const {
    termios now{};
    EXPECT_EQ(::tcgetattr(program_.get(), &now), 0);
    return now.c_lflag == before_.c_lflag && now.c_iflag == before_.c_iflag &&
           now.c_oflag == before_.c_oflag && now.c_cflag == before_.c_cflag &&
           std::memcmp(now.c_cc, before_.c_cc, sizeof now.c_cc) == 0;
  }

  // The last frame that is drawn wholly, as plain text.
  std::string Frame() const {
    const size_t end = written_.rfind("\x1b[J");
    const size_t begin = end == std::string::npos ? end : written_.rfind("\x1b[H", end);
    return begin == std::string::npos ? "" : Plain(written_.substr(begin, end - begin));
  }
  // Reads until the last frame matches; that frame, empty if it takes too long.
  std::string Await(const testing::Matcher<std::string>& wanted) {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (Clock::Real().Now() < until) {
      const std::string frame = Frame();
      if (wanted.Matches(frame)) return frame;
      if (!Read()) break;
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
      Read();
    }
    pid_ = -1;
    while (Read()) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  // False if nothing came for a while of one that has ended.
  bool Read() {
    pollfd readable{terminal_.get(), POLLIN, 0};
    if (::poll(&readable, 1, 100) <= 0) return pid_ > 0;
    char text[65536];
    const ssize_t size = ::read(terminal_.get(), text, sizeof text);
    if (size > 0) written_.append(text, static_cast<size_t>(size));
    return size > 0;
  }

  UniqueFd terminal_;
  UniqueFd program_;  // the program's end, so that it stays when the program ends
  termios before_{};
  std::string written_;
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
  void StartDaemon() {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=64MiB", "--safety_reserve=4MiB", "--host_pool=32MiB"});
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
  EXPECT_TRUE(top.IsRaw());
  EXPECT_THAT(top.written(), AllOf(testing::StartsWith("\x1b[?1049h"), HasSubstr("\x1b[32m")));
  Sleep();
  // What happens is seen though the view began before or after its event.
  const std::string asleep = top.Await(ContainsRegex("w-1 +model +weights +offloaded +\\[="));
  ExpectFits(asleep, 80, 24);
  EXPECT_THAT(asleep, HasSubstr("# resident 0 "));
  top.Await(HasSubstr("sleep ended"));
  top.Resize(60, 7);
  const std::string small = top.Await(HasSubstr("  availa~\n"));
  ExpectFits(small, 60, 7);
  EXPECT_FALSE(top.IsAsBefore());
  top.Type("xq");
  EXPECT_EQ(top.Wait(), 0);
  EXPECT_TRUE(top.IsAsBefore());
  EXPECT_THAT(top.written(), testing::EndsWith("\x1b[?7h\x1b[?25h\x1b[m\x1b[?1049l"));
}

TEST_F(TopTest, SignalsAndCtrlCRestoreTheTerminal) {
  for (const int signal : {SIGTERM, SIGHUP, 0}) {
    TopProcess top(dir_.path(), {"--interval=100ms"}, "1");
    top.Await(HasSubstr("No workers."));
    EXPECT_TRUE(top.IsRaw());
    if (signal != 0) {
      top.Signal(signal);
    } else {
      top.Type("\x03");
    }
    EXPECT_EQ(top.Wait(), 0);
    EXPECT_TRUE(top.IsAsBefore());
    EXPECT_THAT(top.written(), testing::EndsWith("\x1b[?1049l"));
    EXPECT_THAT(top.written(), Not(HasSubstr("\x1b[32m")));
  }
}

TEST_F(TopTest, LeavesTheScreenWhileItIsStopped) {
  TopProcess top(dir_.path(), {});
  top.Await(HasSubstr("No workers."));
  top.Type("\x1a");
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (!top.IsAsBefore() && Clock::Real().Now() < until) ::usleep(1000);
  EXPECT_TRUE(top.IsAsBefore());
  top.Signal(SIGCONT);
  while (!top.IsRaw() && Clock::Real().Now() < until) {
    ::usleep(1000);
    // It may not have stopped yet.
    top.Signal(SIGCONT);
  }
  EXPECT_TRUE(top.IsRaw());
  top.Type("q");
  EXPECT_EQ(top.Wait(), 0);
  EXPECT_TRUE(top.IsAsBefore());
}

TEST_F(TopTest, GoesOnWithTheNextDaemon) {
  TopProcess top(dir_.path(), {});
  top.Await(HasSubstr("No workers."));
  daemon_->process().Signal(SIGKILL);
  top.Await(HasSubstr("NOT ANSWERING UNAVAILABLE, as of "));
  ASSERT_THAT(daemon_->process().Wait(), IsOk());
  StartDaemon();
  top.Await(HasSubstr("torporctl top  SERVING"));
  const auto worker = ConnectWorker("again");
  top.Await(
      AllOf(ContainsRegex("w-1 +again +weights +resident"), HasSubstr("(again) session opened")));
  top.Type("q");
  EXPECT_EQ(top.Wait(), 0);
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
