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
        while (::sigwaitinfo(&signals, nullptr) < 0) continue;
        if (done_) return;
        stopped_ = true;
        stop();
      }) {}

StopOnSignal::~StopOnSignal() {
  done_ = true;
  // To that thread alone, which ends its wait, if there still is one.
  ::pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

}  // namespace torpor::ctl
