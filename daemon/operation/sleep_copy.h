#ifndef TORPOR_DAEMON_OPERATION_SLEEP_COPY_H_
#define TORPOR_DAEMON_OPERATION_SLEEP_COPY_H_

#include "daemon/operation/operation.h"
#include "daemon/operation/report.h"
#include "lib/base/status.h"

namespace torpor {

// Room in the host pool for everything that is offloaded: images of an earlier sleep that are still
// there are held again. On failure the plan has what it got until ReturnImages.
Status TakeImages(const OperationContext& context, const std::string& reservation,
                  const SleepSpec& spec, Plan& plan);
// The sleep is taken back: images that were there before it are clean again.
void ReturnImages(const OperationContext& context, Plan& plan);

// Brings the images of a quiet worker up to date: digests what has a digest in its image, copies
// the chunks that differ or have none, and digests those. Whatever fails, nothing of it is under
// way afterwards.
Status CopyToImages(const OperationContext& context, const SleepSpec& spec, Plan& plan,
                    OperationReport& report, WorkerOutcome& outcome);

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_SLEEP_COPY_H_
