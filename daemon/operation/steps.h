#ifndef TORPOR_DAEMON_OPERATION_STEPS_H_
#define TORPOR_DAEMON_OPERATION_STEPS_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/operation/operation.h"

namespace torpor {

// Creates the extents for `ranges` (merged and cut by PlanExtents), each in the keeper's custody,
// with their share of `draw`. On failure nothing is left.
Result<std::vector<ExtentPtr>> CreateExtents(const OperationContext& context, WorkerId worker,
                                             const std::string& tag,
                                             const std::vector<RangeSet::Range>& ranges,
                                             Draw& draw);

// One of them, of the size of `range`.
Result<ExtentPtr> CreateExtent(const OperationContext& context, WorkerId worker,
                               const std::string& tag, const RangeSet::Range& range, Draw& draw);

// Adds the time of its life to `*sum`.
class PhaseTimer {
 public:
  explicit PhaseTimer(Duration* sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~PhaseTimer() { *sum_ += Elapsed(); }
  Duration Elapsed() const { return std::chrono::steady_clock::now() - start_; }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  Duration* const sum_;
  const TimePoint start_;
};

// The way to a worker; waits for one that is to come back after the daemon's restart.
//   UNAVAILABLE WORKER_GONE; WORKER_AWAITED: not back by `deadline`;
//   DEADLINE_EXCEEDED: back by then, but not yet reconciled; what `cancel` says
Result<std::shared_ptr<WorkerLink>> FindLink(const OperationContext& context, WorkerId worker,
                                             TimePoint deadline, const CancelToken* cancel);

// OK until `deadline` has passed (DEADLINE_EXCEEDED OPERATION_DEADLINE), or `cancel` says why not.
Status CheckWanted(TimePoint deadline, const CancelToken* cancel);

// The last step of an operation: others may follow from here on.
void EndOperation(const OperationContext& context, WorkerId worker);

// Writes the plan's segments to the journal, as they will be (`after`), with their images, or as
// they were: all of them or none.
Status RecordPlan(const OperationContext& context, WorkerId worker, const Plan& plan, bool after);

// An operation on one worker that may have to be taken back.
struct Undo {
  OperationContext context;
  WorkerId worker;
  std::shared_ptr<WorkerLink> link;
  OperationId operation;
  Plan plan;
  bool sleep = false;  // what is rolled back: a sleep (map again) or a wake (unmap)
  std::string worker_name;
  TimePoint deadline;  // of the caller: after it, the answer does not wait for the worker
};

// Takes the operation back: CANCEL, then by what the worker says it maps, MAP or UNMAP, RESUME;
// then the books; then the operation is over. Waits a moment for that; what takes longer goes on in
// the background and `outcome.rollback_pending` says so.
void RollBack(Undo undo, WorkerOutcome& outcome);

// Nothing was asked of the worker yet: only the books.
void RollBackBooks(const OperationContext& context, WorkerLink& link, OperationId operation,
                   Plan& plan);

// Tells the journal that the segment is gone.
void RecordFreed(const OperationContext& context, WorkerId worker, SegmentId segment);
// What a sleep has taken from the promise of `reservation` (empty: none).
void RecordSurrendered(const OperationContext& context, const std::string& reservation);

// Extents whose segments were freed under the operation: unmapped by the worker, then ended.
void EndOrphans(const OperationContext& context, WorkerLink& link, OperationId operation,
                std::vector<Orphans> orphans);

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_STEPS_H_
