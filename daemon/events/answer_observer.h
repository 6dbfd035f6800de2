#ifndef TORPOR_DAEMON_EVENTS_ANSWER_OBSERVER_H_
#define TORPOR_DAEMON_EVENTS_ANSWER_OBSERVER_H_

#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace torpor {

// Hears how requests were answered. Called by any thread, and must not block.
class AnswerObserver {
 public:
  // Where the request came from: a caller of the control plane, or a worker.
  enum class Plane { kControl, kWorker };

  virtual ~AnswerObserver() = default;
  // `request`: the name of a method or message, a constant. `took`: 0 where it is not measured.
  virtual void OnAnswer(Plane plane, const char* request, const Status& status, Duration took) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_EVENTS_ANSWER_OBSERVER_H_
