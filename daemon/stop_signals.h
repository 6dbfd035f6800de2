#ifndef TORPOR_DAEMON_STOP_SIGNALS_H_
#define TORPOR_DAEMON_STOP_SIGNALS_H_

#include <signal.h>
#include <sys/signalfd.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor {

// The signals that end the daemon. SIGTERM and SIGINT stop it; what is sent to a process group, a
// control group or a container comes more than once, since the keeper passes on what it gets. So a
// second one is meant as such only if it comes from the same side as one before, the keeper or
// somebody else, and a second later: then it ends the process at once. Not thread-safe.
class StopSignals {
 public:
  // Ends the daemon in favour of one that its keeper starts.
  static constexpr int kHandOver = SIGHUP;

  // Blocks them for this thread and those that it starts: to be called before there is another one.
  //   INTERNAL ERRNO_...
  Status Take();
  ~StopSignals();
  StopSignals() = default;
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The next one.
  int Wait();
  // From now on they are watched for by a thread, and kHandOver is of no consequence.
  void Watch();
  // Whether there was one that stops. Thread-safe.
  bool stops() const { return stops_.load(); }

 private:
  // False if `stop_` is readable instead.
  bool Next(signalfd_siginfo& info) const;
  void Note(const signalfd_siginfo& info);

  UniqueFd signals_;
  UniqueFd stop_;                                  // an eventfd
  std::array<std::optional<TimePoint>, 2> first_;  // of those that stop: passed on, and others
  std::atomic<bool> stops_{false};
  std::thread watch_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_STOP_SIGNALS_H_
