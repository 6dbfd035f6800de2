#ifndef TORPOR_DAEMON_SERVICE_DEADLINE_H_
#define TORPOR_DAEMON_SERVICE_DEADLINE_H_

#include <grpc/support/time.h>

#include "lib/base/clock.h"

namespace torpor {

// How long an operation may take whose RPC ends at `deadline`: what is left of it without a margin
// (a quarter, at most 100 ms), in which the answer travels. `none` when the RPC has no deadline;
// not below zero and not above a year.
Duration OperationTime(gpr_timespec deadline, Duration none);

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_DEADLINE_H_
