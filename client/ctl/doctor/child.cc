#include "client/ctl/doctor/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

namespace torpor::ctl::doctor {
namespace {

int MillisecondsUntil(TimePoint deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - Clock::Real().Now()).count() + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

}  // namespace

Child Child::Fork(const std::function<void(int output)>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Child(0, UniqueFd());
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Child(0, UniqueFd());
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    // A library that crashes leaves nothing behind.
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    // What libraries print is not part of the report.
    const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      ::dup2(nowhere, standard);
    }
    body(input.get());
    ::_exit(0);
  }
  return Child(pid, std::move(output));
}

Child Child::Start(const std::function<std::string()>& body) {
  return Fork([&](int output) {
    const std::string text = body();
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t written = ::write(output, text.data() + done, text.size() - done);
      if (written < 0 && errno != EINTR) ::_exit(1);
      if (written > 0) done += static_cast<size_t>(written);
    }
  });
}

Child Child::StartProgram(const std::vector<std::string>& command) {
  return Fork([&](int output) {
    ::dup2(output, STDOUT_FILENO);
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  });
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), output_(std::move(other.output_)) {}

Child::~Child() { Kill(); }

void Child::Kill() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  // One that hangs in the kernel does not end: it is left to the system.
  const TimePoint until = Clock::Real().Now() + milliseconds(500);
  while (::waitpid(pid_, nullptr, WNOHANG) == 0 && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  pid_ = 0;
}

Answer Child::Await(TimePoint deadline) {
  Answer answer;
  if (pid_ == 0) {
    answer.end = Answer::End::kDied;
    return answer;
  }
  char buffer[4096];
  while (true) {
    pollfd poll{output_.get(), POLLIN, 0};
    const int ready = ::poll(&poll, 1, MillisecondsUntil(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      Kill();
      answer.text.clear();
      return answer;
    }
    const ssize_t length = ::read(output_.get(), buffer, sizeof buffer);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) break;
    answer.text.append(buffer, static_cast<size_t>(length));
  }
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::Real().Now() > deadline) {
      Kill();
      return answer;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  pid_ = 0;
  answer.end = WIFSIGNALED(status) ? Answer::End::kDied : Answer::End::kAnswered;
  answer.status = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

}  // namespace torpor::ctl::doctor
