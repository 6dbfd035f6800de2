#ifndef TORPOR_DAEMON_OPERATION_RECOVER_H_
#define TORPOR_DAEMON_OPERATION_RECOVER_H_

#include <set>
#include <vector>

#include "daemon/operation/operation.h"

namespace torpor {

// The operation that a worker is under when it comes back to a daemon that was started again.
struct Recovering {
  OperationId operation;
  ExtentId first_new;            // extents from here on are of this daemon's allocations
  std::set<ExtentId> lost;       // that the worker keeps for itself
  std::vector<SegmentId> freed;  // that the worker did not name, and may still map
};

// Brings the worker's mappings to what the books say: what the daemon before was about to unmap or
// map is mapped or unmapped, until the worker has it. Then it resumes, and the operation is over.
// Blocks until then, or until the worker is gone.
void Recover(const OperationContext& context, WorkerLink& link, const Recovering& recovering);

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_RECOVER_H_
