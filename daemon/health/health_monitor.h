#ifndef TORPOR_DAEMON_HEALTH_HEALTH_MONITOR_H_
#define TORPOR_DAEMON_HEALTH_HEALTH_MONITOR_H_

#include <functional>
#include <optional>
#include <thread>

#include "daemon/memory/inventory.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Whether the daemon serves as it should. Not OK, in this order:
//   DAEMON_STARTING    until Start
//   what End says      for good
//   DRIVER_SILENT      a question to the driver is not answered for `probe_bound`
//   GPU_LOST           the driver answers that the device, or this process's context on it, is lost
//   OPERATION_STUCK    an operation, or its roll back, is not over `margin` after its deadline
// and OK again when that is over. All of code UNAVAILABLE. Thread-safe.
class HealthMonitor {
 public:
  struct Options {
    Duration probe_interval = seconds(5);  // between questions to the driver
    Duration probe_bound = seconds(10);
    // What is committed goes on for a while whatever the deadline says.
    Duration margin = seconds(10);
    Duration check_interval = milliseconds(250);
  };
  // The operation whose deadline passed first, of those before `by`.
  using Overdue = std::function<std::optional<OverdueOperation>(TimePoint by)>;

  // `tell` hears each change, one after the other, from Start on; not under a lock of this.
  HealthMonitor(Options options, std::function<void(const Status&)> tell);
  ~HealthMonitor();
  HealthMonitor(const HealthMonitor&) = delete;
  HealthMonitor& operator=(const HealthMonitor&) = delete;

  // Once. `driver` and what `overdue` needs outlive Stop. OK is told on return.
  // RESOURCE_EXHAUSTED THREADS_EXHAUSTED.
  Status Start(Driver& driver, Overdue overdue) EXCLUDES(mutex_);
  // Tells `why`, and nothing any more. Without Start, too.
  void End(const Status& why) EXCLUDES(mutex_, telling_);
  // Waits for the driver's answer and asks no more.
  void Stop() EXCLUDES(mutex_);

  Status status() const EXCLUDES(mutex_);

  // Whether `status` is what another start of the daemon may mend.
  static bool NeedsRestart(const Status& status);

 private:
  void Probe(Driver& driver) EXCLUDES(mutex_);
  void Check(const Overdue& overdue) EXCLUDES(mutex_, telling_);
  Status Judge(const Overdue& overdue) EXCLUDES(mutex_);
  // Becomes `status`, and tells it if it is another one.
  void Become(const Status& status, bool last) EXCLUDES(mutex_, telling_);

  const Options options_;
  const std::function<void(const Status&)> tell_;
  Mutex telling_;  // one change at a time; taken before mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  Status status_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> asked_ GUARDED_BY(mutex_);  // since when an answer is awaited
  Status answer_ GUARDED_BY(mutex_);                   // the last
  int failures_ GUARDED_BY(mutex_) = 0;                // in a row
  std::thread prober_;
  std::thread checker_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_HEALTH_HEALTH_MONITOR_H_
