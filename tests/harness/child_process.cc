#include "tests/harness/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

TimePoint In(Duration patience) { return Clock::Real().Now() + patience; }

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::Start(const Options& options) {
  TORPOR_ASSIGN_OR_RETURN(Pipe input, MakePipe());
  TORPOR_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  UniqueFd errors;
  if (!options.error_file.empty()) {
    errors.Reset(::open(options.error_file.c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC, 0644));
    if (!errors.valid()) return ErrnoStatus(errno, "open " + options.error_file);
  }
  std::vector<std::string> command = options.command;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    if (options.environment.count(name) == 0) environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : options.environment) {
    environment.emplace_back(name).append("=").append(value);
  }
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> envp = Pointers(environment);

  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    // Only what is safe between fork and exec.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(input.read.get(), STDIN_FILENO);
    ::dup2(output.write.get(), STDOUT_FILENO);
    if (errors.valid()) ::dup2(errors.get(), STDERR_FILENO);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, std::move(input.write), std::move(output.read)));
}

ChildProcess::~ChildProcess() {
  if (exit_status_ >= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Status ChildProcess::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(input_.get(), text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write to pid " + std::to_string(pid_));
    written += static_cast<size_t>(n);
  }
  return Status::Ok();
}

Result<bool> ChildProcess::ReadMore(TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::Real().Now());
    pollfd ready{output_.get(), POLLIN, 0};
    const int polled = ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0) {
      return DeadlineExceeded(
          "NO_OUTPUT", "pid " + std::to_string(pid_) + " says nothing; until now: " + buffer_);
    }
    char chunk[4096];
    const ssize_t n = ::read(output_.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read from pid " + std::to_string(pid_));
    buffer_.append(chunk, static_cast<size_t>(n));
    return n > 0;
  }
}

Result<std::string> ChildProcess::ReadLine(Duration patience) {
  const TimePoint deadline = In(patience);
  size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    TORPOR_ASSIGN_OR_RETURN(const bool more, ReadMore(deadline));
    if (!more) {
      return Unavailable("END_OF_OUTPUT", "pid " + std::to_string(pid_) + " has ended its output");
    }
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

Result<std::string> ChildProcess::ReadAll(Duration patience) {
  const TimePoint deadline = In(patience);
  bool more = true;
  while (more) {
    TORPOR_ASSIGN_OR_RETURN(more, ReadMore(deadline));
  }
  return std::exchange(buffer_, {});
}

void ChildProcess::Signal(int signal) {
  if (exit_status_ >= 0 || ::kill(pid_, signal) != 0 || signal != SIGSTOP) return;
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

Result<int> ChildProcess::Wait(Duration patience) {
  const TimePoint deadline = In(patience);
  while (exit_status_ < 0) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended < 0) return ErrnoStatus(errno, "wait for pid " + std::to_string(pid_));
    if (ended == pid_) {
      exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (Clock::Real().Now() >= deadline) {
      return DeadlineExceeded("STILL_RUNNING", "pid " + std::to_string(pid_) + " does not end");
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return exit_status_;
}

Result<Finished> RunProgram(const std::vector<std::string>& command,
                            const std::map<std::string, std::string>& environment) {
  const TempDir dir;
  ChildProcess::Options options;
  options.command = command;
  options.environment = environment;
  options.error_file = dir.path() + "/errors";
  TORPOR_ASSIGN_OR_RETURN(const auto process, ChildProcess::Start(options));
  process->CloseInput();
  Finished finished;
  TORPOR_ASSIGN_OR_RETURN(finished.output, process->ReadAll());
  TORPOR_ASSIGN_OR_RETURN(finished.exit_status, process->Wait());
  finished.errors = ReadFile(options.error_file);
  return finished;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace torpor
