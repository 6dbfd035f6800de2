#include "daemon/keeper/supervisor.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "daemon/keeper/protocol.h"

namespace torpor::keeper {
namespace {

// A daemon that ends sooner after its start is followed by a pause; one that has served is not, for
// workers wait for the next one.
constexpr Duration kLived = seconds(1);
constexpr Duration kFirstPause = milliseconds(200);
// Workers give up after the grace time: several of these have to fit into it.
constexpr Duration kLongestPause = seconds(2);

UniqueFd OpenPidFd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

bool Supervisor::TakeOver(const ProcessId& daemon) {
  UniqueFd pidfd = OpenPidFd(daemon.pid);
  if (!pidfd.valid()) return false;
  // Only now, when the number cannot become another's.
  const Result<ProcessId> found = FindProcess(daemon.pid);
  if (!found.ok() || !(*found == daemon)) return false;
  pidfd_ = std::move(pidfd);
  daemon_ = daemon;
  ours_ = false;
  attached_ = true;
  since_ = Clock::Real().Now();
  return true;
}

Status Supervisor::Start() {
  std::vector<char*> arguments;
  arguments.reserve(command_.size() + 1);
  for (const std::string& argument : command_) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "start the daemon");
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvp(arguments[0], arguments.data());
    ::dprintf(STDERR_FILENO, "torpor-keeper: cannot run %s: %s\n", arguments[0],
              strerrordesc_np(errno));
    ::_exit(127);
  }
  pidfd_ = OpenPidFd(pid);
  const Result<ProcessId> process = FindProcess(pid);  // a zombie at worst
  if (!pidfd_.valid() || !process.ok()) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pidfd_.Reset();
    return process.ok() ? ErrnoStatus(error, "watch the daemon") : process.status();
  }
  daemon_ = *process;
  ours_ = true;
  attached_ = false;
  since_ = Clock::Real().Now();
  return Status::Ok();
}

Supervisor::End Supervisor::Collect() {
  End end;
  int status = 0;
  if (ours_ && ::waitpid(daemon_.pid, &status, 0) == daemon_.pid) end.status = status;
  pidfd_.Reset();
  const bool lived = attached_ && Clock::Real().Now() - since_ >= kLived;
  pause_ = lived ? Duration() : std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  end.pause = pause_;
  return end;
}

void Supervisor::Signal(int signal) const {
  if (!running()) return;
  siginfo_t info{};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = kPassedOn;
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, &info, 0);
}

}  // namespace torpor::keeper
