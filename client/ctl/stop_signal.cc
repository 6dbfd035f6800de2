#include "client/ctl/stop_signal.h"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace torpor::ctl {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void UnblockStopSignals() {
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

StopOnSignal::StopOnSignal(std::function<void()> stop)
    : thread_([this, stop = std::move(stop)] {
        const sigset_t signals = StopSignals();
        const timespec pause{0, 50'000'000};
        while (!done_) {
          if (::sigtimedwait(&signals, nullptr, &pause) < 0) continue;
          stopped_ = true;
          stop();
          return;
        }
      }) {}

StopOnSignal::~StopOnSignal() {
  done_ = true;
  thread_.join();
}

}  // namespace torpor::ctl
