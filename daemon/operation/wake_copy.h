#ifndef TORPOR_DAEMON_OPERATION_WAKE_COPY_H_
#define TORPOR_DAEMON_OPERATION_WAKE_COPY_H_

#include "daemon/operation/operation.h"
#include "daemon/operation/report.h"
#include "daemon/session/worker_link.h"
#include "lib/base/status.h"

namespace torpor {

// Makes the extents of a wake, has the worker map them, and fills them from the images, or clears
// them: each is made while those before it are copied. Arenas with images come in the plan's order,
// the others beside them. On failure the plan has the extents that were made. Whatever fails, no
// copy is under way afterwards, and no answer of the worker is outstanding, except one that did not
// come in time.
Status CreateAndFill(const OperationContext& context, WorkerLink& link, OperationId operation,
                     const WakeSpec& spec, Draw draw, Plan& plan, OperationReport& report,
                     WorkerOutcome& outcome);

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_WAKE_COPY_H_
