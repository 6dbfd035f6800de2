#ifndef TORPOR_DAEMON_METRICS_METRICS_H_
#define TORPOR_DAEMON_METRICS_METRICS_H_

#include <prometheus/registry.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "daemon/core/core.h"
#include "daemon/events/answer_observer.h"
#include "daemon/metrics/family.h"
#include "daemon/metrics/request_metrics.h"
#include "daemon/metrics/usage_reader.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/cuda/timed_driver.h"

namespace torpor::metrics {

// All that a scrape gets, in Prometheus' text format. What happens is counted as it happens; what
// is there is read when it is asked for, and left out where that takes too long. Thread-safe.
class Metrics {
 public:
  // A scrape waits no longer for Usage.
  static constexpr Duration kPatience = seconds(2);

  // `driver` must outlive this. `health` may be null.
  Metrics(const TimedDriver& driver, std::string version, std::function<Status()> health,
          Duration patience = kPatience);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  AnswerObserver& observer() { return requests_; }
  // From now on with `core`, which must not end before Stop. Once. RESOURCE_EXHAUSTED
  // THREADS_EXHAUSTED.
  Status Serve(Core& core);
  // Counts no more events, and asks the core no more.
  void Stop();

  // Of the daemon by its keeper.
  void SetStarts(uint32_t starts) { starts_ = starts; }
  // The daemon goes by an older one than it finds.
  void SetAccessFileWrong(bool wrong) { access_file_wrong_ = wrong; }

  std::string Scrape();

 private:
  void FollowEvents(EventLog& log);
  void AddDriver(Families& families) const;
  void AddDaemon(Families& families) const;

  const TimedDriver& driver_;
  const std::string version_;
  const std::function<Status()> health_;
  const Duration patience_;
  const std::chrono::system_clock::time_point started_;
  prometheus::Registry registry_;
  RequestMetrics requests_;
  UsageReader usage_;
  EventLog* events_ = nullptr;
  std::atomic<uint32_t> starts_ = 0;
  std::atomic<bool> access_file_wrong_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread follower_;
};

}  // namespace torpor::metrics

#endif  // TORPOR_DAEMON_METRICS_METRICS_H_
