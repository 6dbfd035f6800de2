#ifndef TORPOR_DAEMON_METRICS_REQUEST_METRICS_H_
#define TORPOR_DAEMON_METRICS_REQUEST_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstddef>
#include <set>
#include <string>

#include "daemon/events/answer_observer.h"
#include "daemon/events/event.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor::metrics {

// Counts what happens: requests as they are answered, and events. Thread-safe; a count takes a few
// look-ups under locks that are held no longer.
class RequestMetrics final : public AnswerObserver {
 public:
  // So many different reasons are counted under their names, further ones as "other".
  static constexpr size_t kMostReasons = 128;

  explicit RequestMetrics(prometheus::Registry& registry);

  void OnAnswer(Plane plane, const char* request, const Status& status, Duration took) override
      EXCLUDES(mutex_);
  void OnEvent(const EventBody& event) EXCLUDES(mutex_);
  void OnLost(uint64_t events) { events_lost_.Increment(static_cast<double>(events)); }

 private:
  void Count(const OperationEvent& event) EXCLUDES(mutex_);
  void CountError(const char* source, const Status& status) EXCLUDES(mutex_);

  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& request_seconds_;
  prometheus::Family<prometheus::Counter>& errors_;
  prometheus::Family<prometheus::Counter>& operations_;
  prometheus::Family<prometheus::Histogram>& operation_seconds_;
  prometheus::Family<prometheus::Histogram>& phase_seconds_;
  prometheus::Family<prometheus::Counter>& released_;
  prometheus::Family<prometheus::Counter>& copied_;
  prometheus::Family<prometheus::Counter>& discarded_;
  prometheus::Counter& offload_asked_;
  prometheus::Counter& offload_unchanged_;
  prometheus::Family<prometheus::Counter>& rollbacks_;
  prometheus::Family<prometheus::Counter>& sessions_;
  prometheus::Family<prometheus::Counter>& reservations_;
  prometheus::Family<prometheus::Counter>& waits_;
  prometheus::Counter& events_lost_;
  Mutex mutex_;
  std::set<std::string> reasons_ GUARDED_BY(mutex_);
};

}  // namespace torpor::metrics

#endif  // TORPOR_DAEMON_METRICS_REQUEST_METRICS_H_
