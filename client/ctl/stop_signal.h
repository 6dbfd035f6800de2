#ifndef TORPOR_CLIENT_CTL_STOP_SIGNAL_H_
#define TORPOR_CLIENT_CTL_STOP_SIGNAL_H_

#include <atomic>
#include <functional>
#include <thread>

namespace torpor::ctl {

// SIGINT and SIGTERM end calls instead of the process: to be called before there is any thread.
void BlockStopSignals();
// Back to ending the process.
void UnblockStopSignals();

// Calls `stop`, on another thread, at the first signal that asks to stop, while it lives. These
// signals have to be blocked from before it is made until after its end, which does not wait for
// one; one that comes later is for the next.
class StopOnSignal {
 public:
  explicit StopOnSignal(std::function<void()> stop);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  bool stopped() const { return stopped_; }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_STOP_SIGNAL_H_
