#ifndef TORPOR_DAEMON_OPERATION_OPERATION_H_
#define TORPOR_DAEMON_OPERATION_OPERATION_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/admission/admission.h"
#include "daemon/events/event_log.h"
#include "daemon/keeper/keeper.h"
#include "daemon/memory/device_memory.h"
#include "daemon/memory/inventory.h"
#include "daemon/operation/tasks.h"
#include "daemon/pool/image.h"
#include "daemon/session/worker_link.h"
#include "daemon/transfer/transfer.h"
#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace torpor {

class SharedRuns;

// What operations work with; everything outlives them.
struct OperationContext {
  DeviceMemory& memory;
  Inventory& inventory;
  Admission& admission;
  ImageStore& images;
  TransferEngine* transfer;
  Keeper& keeper;
  WorkerDirectory& directory;
  Tasks* tasks;
  Duration worker_deadline;
  EventLog& events;
  SharedRuns& runs;
  // Compares the bytes of what digests call unchanged.
  bool verify_images = false;
};

struct WorkerOutcome {
  WorkerId worker;
  std::string name;
  Status status;  // not OK: everything is, or will be, as it was
  int64_t segments = 0;
  Bytes device{};  // freed by a sleep, taken by a wake
  Bytes copied{};
  Bytes unchanged{};  // offloaded by a sleep without a copy
  Bytes discarded{};  // dropped by a sleep, cleared by a wake
  PhaseTimes times;
  bool rollback_pending = false;
};

struct SleepSpec {
  std::string wish;  // equal for those that would do the same (shared_runs.h)
  Inventory::TagFilter tags;
  Inventory::PolicyOf policy;
  bool force = false;
  bool own = false;      // by the worker's own call
  int32_t priority = 0;  // of its copies; the highest first
  TimePoint deadline;
  const CancelToken* cancel = nullptr;  // before the commit; none: only the deadline ends it
  bool again = false;                   // waits for the roll back of what another caller gave up
};

// Puts one worker's segments to sleep. The steps, and what a failure at each leaves:
//   1. room in the host pool, for what is offloaded             nothing changed
//   2. QUIESCE                                                  the worker resumes
//   3. copy to the pool what its image does not hold already,
//      while the worker unmaps                                  it maps again and resumes
//   4. commit: the journal says so                              from here on only forward
//   5. release extents, RESUME, answer
// Where the same is under way already, by `wish`, waits for that and gives its outcome.
// A worker that does not acknowledge its cancellation leaves `rollback_pending`; the roll back goes
// on in the background and the worker stays under this operation until it is done.
WorkerOutcome RunSleep(const OperationContext& context, WorkerId worker, const SleepSpec& spec);

struct WakeSpec {
  std::string wish;
  Inventory::TagFilter tags;
  std::vector<std::string> order;  // tags whose bytes come first
  std::string reservation;         // empty: the worker's own if it has room, else the free budget
  int32_t priority = 0;            // as in SleepSpec
  TimePoint deadline;
  const CancelToken* cancel = nullptr;  // as in SleepSpec
  bool again = false;                   // likewise
};

// Gives one worker's sleeping segments their memory back:
//   1. admission                                                nothing changed
//   2. create extents; MAP them; copy and clear                 the worker unmaps what it mapped
//   3. commit: the journal says so                              from here on only forward
//   4. RESUME, answer
// Shared as a sleep is.
WorkerOutcome RunWake(const OperationContext& context, WorkerId worker, const WakeSpec& spec);

// --- Allocation, on the worker's own request.

// A segment with memory, to be mapped by its worker; PENDING until Allocated.
struct NewSegment {
  Inventory::Placement placement;
  std::vector<ExtentPtr> extents;
};
// `granted`: a draw of the right size, used if it is needed; otherwise the worker's reservation, or
// the free budget, is asked.
Result<NewSegment> AllocateSegment(const OperationContext& context, WorkerId worker,
                                   const std::string& tag, Bytes size,
                                   std::optional<Draw> granted = std::nullopt);
// `mapped` not OK: the worker could not map it; the segment goes.
Status FinishAllocation(const OperationContext& context, WorkerId worker, SegmentId segment,
                        const Status& mapped);
// The extents that the worker has to unmap before it says Freed.
Result<std::vector<ExtentPtr>> FreeSegment(const OperationContext& context, WorkerId worker,
                                           SegmentId segment);
// The worker has unmapped what FreeSegment gave, or has freed what a restart had lost.
void FinishFree(const OperationContext& context, WorkerId worker, SegmentId segment);

// Ends extents that no book names any more: out of custody, then released.
void EndExtents(const OperationContext& context, std::vector<ExtentPtr> extents);

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_OPERATION_H_
