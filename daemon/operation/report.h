#ifndef TORPOR_DAEMON_OPERATION_REPORT_H_
#define TORPOR_DAEMON_OPERATION_REPORT_H_

#include <string>

#include "daemon/events/event_log.h"
#include "daemon/operation/operation.h"
#include "lib/base/clock.h"
#include "lib/base/units.h"

namespace torpor {

// What one operation on one worker tells the event log, in the order of its methods. An operation
// that finds nothing to do tells nothing. Not thread-safe.
class OperationReport {
 public:
  using Phase = ProgressEvent::Phase;

  OperationReport(EventLog& events, OperationKind kind, OperationId operation, WorkerId worker,
                  const std::string& worker_name);

  // By a plan that is not carried out yet.
  void Started(const Plan& plan);
  // Progress: when a phase begins, and for bytes that arrived at most ten times a second.
  void Enter(Phase phase, const std::string& tag = "");
  void Arrived(Bytes size);
  // The books have it.
  void Committed(const Plan& plan, const WorkerOutcome& outcome);
  // The worker can be under another operation, or the roll back goes on. With the last progress, if
  // that is not told yet.
  void Ended(const WorkerOutcome& outcome);

 private:
  void Tell(OperationEvent::Change change, const WorkerOutcome& outcome);
  void TellProgress(TimePoint now);

  EventLog& events_;
  const TimePoint begun_;
  OperationEvent head_;
  ProgressEvent progress_;
  bool started_ = false;
  bool untold_ = false;  // progress_ is ahead of its last event
  TimePoint told_{};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_REPORT_H_
