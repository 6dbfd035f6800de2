#include "daemon/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "daemon/keeper/protocol.h"
#include "daemon/log.h"

namespace torpor {
namespace {

constexpr Duration kAgain = seconds(1);

void Unblock(int signal) {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
}

}  // namespace

Status StopSignals::Take() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGTERM, SIGINT, kHandOver}) sigaddset(&taken, signal);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &taken, nullptr); error != 0) {
    return ErrnoStatus(error, "block signals");
  }
  signals_.Reset(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "take signals");
  stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid()) return ErrnoStatus(errno, "make an eventfd");
  return Status::Ok();
}

StopSignals::~StopSignals() {
  if (!watch_.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  watch_.join();
}

int StopSignals::Wait() {
  signalfd_siginfo info{};
  while (!Next(info)) {
  }
  Note(info);
  return static_cast<int>(info.ssi_signo);
}

void StopSignals::Watch() {
  try {
    watch_ = std::thread([this] {
      signalfd_siginfo info{};
      while (Next(info)) Note(info);
    });
  } catch (const std::system_error& error) {
    log::Warning("any further SIGTERM ends the daemon at once: {}",
                 ErrnoStatus(error.code().value(), "start a thread"));
    Unblock(SIGTERM);
    Unblock(SIGINT);
  }
}

bool StopSignals::Next(signalfd_siginfo& info) const {
  for (;;) {
    pollfd polled[] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0) continue;
    if (::read(signals_.get(), &info, sizeof info) == sizeof info) return true;
    if (polled[1].revents != 0) return false;
  }
}

void StopSignals::Note(const signalfd_siginfo& info) {
  const int signal = static_cast<int>(info.ssi_signo);
  if (signal == kHandOver) return;
  stops_ = true;
  const bool passed_on = info.ssi_code == SI_QUEUE && info.ssi_int == keeper::kPassedOn;
  std::optional<TimePoint>& first = first_[passed_on ? 0 : 1];
  const TimePoint now = Clock::Real().Now();
  if (!first.has_value()) first = now;
  if (now - *first < kAgain) return;
  Unblock(signal);
  ::raise(signal);
}

}  // namespace torpor
