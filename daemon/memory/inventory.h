#ifndef TORPOR_DAEMON_MEMORY_INVENTORY_H_
#define TORPOR_DAEMON_MEMORY_INVENTORY_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/memory/arena.h"
#include "daemon/memory/segment.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/process.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"

namespace torpor {

// What is known of a worker besides its memory.
struct WorkerInfo {
  WorkerId id;
  std::string name;
  net::PeerCredentials peer;
  ProcessId process;  // of the peer, if it is known
  wire::Quiesce quiesce = wire::Quiesce::kNone;
  std::string sleep_endpoint;  // wire::SetSleepEndpoint
  std::string reservation;
  std::string owner;     // the only one but operators on whose reservations it may draw; empty: any
  std::string secret;    // with which it can come back
  bool awaited = false;  // of a daemon before this one, and not back yet
  Bytes reported_live{-1};
  Bytes reported_reserved{-1};
};

// "w-7"
std::string WorkerName(WorkerId id);
// "op-12"
std::string OperationName(OperationId id);

struct TagStats {
  std::string tag;
  int64_t segments = 0;
  int64_t moving = 0;
  int64_t extents = 0;
  Bytes resident{};
  Bytes offloaded{};
  Bytes discarded{};
  Bytes addresses{};
  Bytes stranded{};
  Bytes host{};
  Bytes clean{};  // of the host pool, by images of resident segments
  Bytes lost{};   // that the worker has not freed yet
};

struct WorkerStats {
  WorkerInfo info;
  std::optional<OperationId> operation;
  bool unknown_attachment = false;
  std::vector<TagStats> tags;
};

// An operation that is not over by its deadline.
struct OverdueOperation {
  WorkerId worker;
  std::string worker_name;
  OperationId operation;
  TimePoint deadline;
};

// One segment's part in an operation.
struct PlannedSegment {
  SegmentId id;
  Bytes offset{};
  Bytes size{};
  SegmentState from = SegmentState::kResident;
  SegmentState to = SegmentState::kResident;
  std::shared_ptr<Image> image;  // to fill by a sleep, to read by a wake
  bool reused = false;           // by a sleep: it was there, and is held for it
};

// One arena's part in an operation. `extents`: those that a sleep gives up, or a wake has made.
struct PlannedArena {
  std::string tag;
  std::vector<PlannedSegment> segments;
  std::vector<ExtentPtr> extents;
};

// What one operation does to one worker; the segments in it belong to the operation.
struct Plan {
  std::vector<PlannedArena> arenas;
  bool empty() const { return arenas.empty(); }
  int64_t segments() const;
  // Bytes of all segments that leave (sleep) or enter (wake) `state`.
  Bytes Sum(SegmentState from, SegmentState to) const;
};

// What was freed while an operation held it, and the extents that lost their last segment with it:
// their worker has to unmap those.
struct Orphans {
  std::string tag;
  std::vector<SegmentId> segments;
  std::vector<ExtentPtr> extents;
};

// The books of all workers: arenas, segments, extents, who is under which operation. Calls no
// driver and never blocks for anything but its mutex (Close excepted). Thread-safe.
//
// A segment in SLEEPING or WAKING belongs to the operation that moved it there; an operation
// belongs to one worker, and a worker has at most one.
class Inventory {
 public:
  Inventory(Bytes granularity, Bytes arena_size, Bytes device_total)
      : granularity_(granularity), arena_size_(arena_size), device_total_(device_total) {}

  Bytes arena_size() const { return arena_size_; }

  // --- workers
  WorkerId AddWorker(WorkerInfo info) EXCLUDES(mutex_);
  std::optional<WorkerInfo> FindWorker(WorkerId id) const EXCLUDES(mutex_);
  void UpdateWorker(WorkerId id, const std::function<void(WorkerInfo&)>& change) EXCLUDES(mutex_);
  // The worker is gone: refuses new operations and allocations, waits for the operation under way
  // and gives all its extents, out of the books.
  std::vector<ExtentPtr> Close(WorkerId id) EXCLUDES(mutex_);
  // Forgets everyone, as at the end of the process.
  void Clear() EXCLUDES(mutex_);
  // Forgets a closed worker, once its extents have ended.
  void Remove(WorkerId id) EXCLUDES(mutex_);
  std::vector<WorkerStats> Snapshot() const EXCLUDES(mutex_);
  // Each worker with the bytes of its extents.
  std::vector<MemoryHolder> Holders() const EXCLUDES(mutex_);
  // Tags of the worker with a segment that has no memory.
  wire::AsleepTags AsleepTags(WorkerId id) EXCLUDES(mutex_);
  // Also if it was lost.
  bool HasTag(WorkerId id, const std::string& tag) const EXCLUDES(mutex_);

  // --- after a restart
  struct RestoredSegment {
    SegmentId id;
    Bytes offset{};
    Bytes size{};
    SegmentState state = SegmentState::kResident;  // a rest state
    std::shared_ptr<Image> image;
  };
  struct RestoredArena {
    std::string tag;
    std::vector<RestoredSegment> segments;
    std::vector<ExtentPtr> extents;
    // What the worker keeps for itself, and where.
    std::vector<ExtentId> lost_extents;
    std::vector<RangeSet::Range> lost;
    // What it had there, or in the pool.
    std::map<SegmentId, Bytes> lost_segments;
    // Where extents were that no segment needs: the worker may still map them.
    std::vector<RangeSet::Range> leaving;
  };
  // A worker as a daemon before this one knew it, under its old id. It is awaited, and under an
  // operation until it is back.
  void Restore(WorkerInfo info, std::vector<RestoredArena> arenas) EXCLUDES(mutex_);
  // The ids that come next are higher than these.
  void SkipIds(WorkerId worker, SegmentId segment, ExtentId extent) EXCLUDES(mutex_);
  struct Returned {
    OperationId operation;  // that the worker is under
    ExtentId first_new;     // extents from here on are not of the daemon before
    std::set<ExtentId> lost;
  };
  // The worker is back, with the peer and the quiesce mode of `now`.
  //   NOT_FOUND UNKNOWN_SESSION: no such worker is awaited; PERMISSION_DENIED WRONG_SECRET
  Result<Returned> Return(const WorkerInfo& now) EXCLUDES(mutex_);
  // The worker maps what the books say and nothing else: addresses that it left can be used again.
  // Gives what was freed while it was away.
  std::vector<ExtentPtr> SettleReturned(WorkerId worker, const std::vector<SegmentId>& freed)
      EXCLUDES(mutex_);
  // Waits until `until` for a worker that is awaited, or on its way back, to be under no operation
  // of that. False: it still is.
  bool AwaitReturn(WorkerId worker, TimePoint until) EXCLUDES(mutex_);
  // False if it is not awaited, or came back meanwhile: else its operation has ended.
  bool GiveUp(WorkerId worker) EXCLUDES(mutex_);
  std::vector<WorkerInfo> Awaited() const EXCLUDES(mutex_);
  // The ids of all segments of the worker.
  std::vector<SegmentId> Segments(WorkerId worker) const EXCLUDES(mutex_);
  struct TagExtents {
    std::string tag;
    std::vector<ExtentPtr> extents;
  };
  std::vector<TagExtents> Extents(WorkerId worker) const EXCLUDES(mutex_);
  // Of what a restart has lost, by tag.
  std::map<std::string, Bytes> Lost(WorkerId worker) const EXCLUDES(mutex_);
  // The worker has freed a segment that was lost. False: it is no such one.
  bool ForgetLost(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);

  // --- allocation
  struct Placement {
    SegmentId segment;
    Bytes offset{};
    Bytes size{};
    bool mapped = false;  // RESIDENT at once: in memory that the worker maps already
  };
  // Checks and places; the segment is PENDING until Publish or Abandon.
  //   INVALID_ARGUMENT BAD_TAG, BAD_ALLOCATION_SIZE; RESOURCE_EXHAUSTED LARGER_THAN_DEVICE,
  //   ARENA_EXHAUSTED; UNAVAILABLE WORKER_GONE
  Result<Placement> Place(WorkerId worker, const std::string& tag, Bytes size) EXCLUDES(mutex_);
  // Ids for `ranges` of a placement or a plan.
  std::vector<ExtentId> NewExtentIds(size_t count) EXCLUDES(mutex_);
  // UNAVAILABLE WORKER_GONE: it went since Place; they are not in the books.
  Status AddExtents(WorkerId worker, const std::string& tag, const std::vector<ExtentPtr>& extents)
      EXCLUDES(mutex_);
  struct SegmentInfo {
    std::string tag;
    Bytes offset{};
    Bytes size{};
    bool pending = false;
  };
  Result<SegmentInfo> Describe(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);
  // Its worker maps it: RESIDENT. NOT_FOUND UNKNOWN_SEGMENT.
  Status Publish(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);
  // Removes a PENDING segment; gives its extents.
  Result<std::vector<ExtentPtr>> Abandon(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);

  // --- freeing
  // The image of a segment; null without one.
  std::shared_ptr<Image> ImageOf(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);
  // Removes the segment, or dooms it when an operation holds it. Gives what its worker has to
  // unmap; the extents wait in the books for Freed. NOT_FOUND UNKNOWN_SEGMENT.
  Result<std::vector<ExtentPtr>> Free(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);
  // The worker has unmapped what Free gave: the addresses can be used again.
  std::vector<ExtentPtr> Freed(WorkerId worker, SegmentId segment) EXCLUDES(mutex_);

  // The same for what Commit or RollBack gave.
  void Reclaim(WorkerId worker, const Orphans& orphans) EXCLUDES(mutex_);

  // --- operations
  // `deadline`: by when it, and its roll back, should be over.
  // NOT_FOUND/UNAVAILABLE WORKER_GONE, ABORTED OPERATION_IN_PROGRESS or ROLLBACK_PENDING.
  Result<OperationId> BeginOperation(WorkerId worker, TimePoint deadline = TimePoint::max())
      EXCLUDES(mutex_);
  void EndOperation(WorkerId worker) EXCLUDES(mutex_);
  OperationId NewOperationId() EXCLUDES(mutex_);
  // The operation whose deadline passed first of those that should have been over at `by`.
  std::optional<OverdueOperation> MostOverdue(TimePoint by) const EXCLUDES(mutex_);

  using PolicyOf = std::function<wire::Policy(const std::string& tag)>;
  using TagFilter = std::function<bool(const std::string& tag)>;
  // Moves what the policies name from RESIDENT to SLEEPING. With `force`, plans OFFLOADED segments
  // that shall be discarded, too; they stay OFFLOADED until the commit.
  Plan BeginSleep(WorkerId worker, const TagFilter& tags, const PolicyOf& policy, bool force)
      EXCLUDES(mutex_);
  // Moves what sleeps under `tags` to WAKING.
  Plan BeginWake(WorkerId worker, const TagFilter& tags) EXCLUDES(mutex_);
  // Takes a sleep's extents out of the books, before they end.
  void TakeExtents(WorkerId worker, const Plan& plan) EXCLUDES(mutex_);
  // Moves every segment to where the plan says. A wake's extents enter the books; images are
  // set, kept or dropped. Segments freed meanwhile go.
  std::vector<Orphans> Commit(WorkerId worker, Plan& plan) EXCLUDES(mutex_);
  // Moves every segment back.
  std::vector<Orphans> RollBack(WorkerId worker, Plan& plan) EXCLUDES(mutex_);
  void SetAttachment(WorkerId worker, const Plan& plan, AttachmentState state) EXCLUDES(mutex_);
  // The worker does not answer: all that `operation`, if still under way, moves is UNKNOWN.
  void MarkUnknown(WorkerId worker, OperationId operation) EXCLUDES(mutex_);

 private:
  struct Worker {
    WorkerInfo info;
    std::map<std::string, std::unique_ptr<Arena>> arenas;
    std::map<SegmentId, Arena*> segments;
    std::map<SegmentId, Orphans> freeing;
    std::optional<OperationId> operation;
    TimePoint deadline = TimePoint::max();  // of that
    std::set<ExtentId> lost;                // that it maps, and nobody else has
    std::map<SegmentId, std::pair<std::string, Bytes>> lost_segments;  // tag, size
    bool returning = false;  // under the operation of Restore
    bool closing = false;
  };

  Worker* Find(WorkerId id) REQUIRES(mutex_);
  const Worker* Find(WorkerId id) const REQUIRES(mutex_);
  Result<Worker*> FindOpen(WorkerId id) REQUIRES(mutex_);
  static Segment* FindSegment(Worker& worker, SegmentId id);
  static std::vector<ExtentPtr> DropSegment(Worker& worker, SegmentId id);
  static std::vector<Orphans> DropDoomed(Worker& worker, const Plan& plan);
  static bool HasUnknownAttachment(const Worker& worker);

  const Bytes granularity_;
  const Bytes arena_size_;
  const Bytes device_total_;
  mutable Mutex mutex_;
  CondVar operation_ended_;
  std::map<WorkerId, Worker> workers_ GUARDED_BY(mutex_);
  uint64_t next_worker_ GUARDED_BY(mutex_) = 1;
  uint64_t asleep_revision_ GUARDED_BY(mutex_) = 0;
  uint64_t next_segment_ GUARDED_BY(mutex_) = 1;
  uint64_t next_extent_ GUARDED_BY(mutex_) = 1;
  uint64_t next_operation_ GUARDED_BY(mutex_) = 1;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_INVENTORY_H_
