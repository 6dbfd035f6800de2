#include "daemon/operation/steps.h"

#include <algorithm>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/shared_runs.h"
#include "daemon/operation/sleep_copy.h"

namespace torpor {
namespace {

constexpr Duration kCancelCheck = milliseconds(20);

Status OperationLate() {
  return DeadlineExceeded("OPERATION_DEADLINE", "the operation did not finish in time");
}

}  // namespace

Result<ExtentPtr> CreateExtent(const OperationContext& context, WorkerId worker,
                               const std::string& tag, const RangeSet::Range& range, Draw& draw) {
  const ExtentId id = context.inventory.NewExtentIds(1).front();
  TORPOR_ASSIGN_OR_RETURN(ExtentPtr extent, Extent::Create(context.memory, id, range.offset,
                                                           range.size, draw.Split(range.size)));
  TORPOR_RETURN_IF_ERROR(
      context.keeper.HoldExtent({id, worker, tag, range.offset, range.size}, extent->fd()));
  return extent;
}

Result<std::vector<ExtentPtr>> CreateExtents(const OperationContext& context, WorkerId worker,
                                             const std::string& tag,
                                             const std::vector<RangeSet::Range>& ranges,
                                             Draw& draw) {
  std::vector<ExtentPtr> extents;
  for (const RangeSet::Range& range : PlanExtents(ranges)) {
    Result<ExtentPtr> extent = CreateExtent(context, worker, tag, range, draw);
    if (!extent.ok()) {
      EndExtents(context, std::move(extents));
      return extent.status();
    }
    extents.push_back(*std::move(extent));
  }
  return extents;
}

void EndExtents(const OperationContext& context, std::vector<ExtentPtr> extents) {
  for (ExtentPtr& extent : extents) {
    if (const Status dropped = context.keeper.DropExtent(extent->id()); !dropped.ok()) {
      log::Error("extent {} is still in custody: {}", extent->id().value(), dropped);
    }
    extent.reset();
  }
}

Result<std::shared_ptr<WorkerLink>> FindLink(const OperationContext& context, WorkerId worker,
                                             TimePoint deadline, const CancelToken* cancel) {
  for (;;) {
    const TimePoint next = std::chrono::steady_clock::now() + kCancelCheck;
    if (context.inventory.AwaitReturn(worker, std::min(deadline, next))) break;
    TORPOR_RETURN_IF_ERROR(CheckCancelled(cancel));
    if (next < deadline) continue;
    const auto info = context.inventory.FindWorker(worker);
    if (info.has_value() && !info->awaited) return OperationLate();  // it is being brought back
    return Unavailable("WORKER_AWAITED",
                       "worker " + WorkerName(worker) +
                           " has not come back since the daemon was started again")
        .With("worker", WorkerName(worker));
  }
  return context.directory.Find(worker);
}

Status CheckWanted(TimePoint deadline, const CancelToken* cancel) {
  TORPOR_RETURN_IF_ERROR(CheckCancelled(cancel));
  if (std::chrono::steady_clock::now() < deadline) return Status::Ok();
  return OperationLate();
}

void EndOperation(const OperationContext& context, WorkerId worker) {
  context.runs.Close(worker);
  context.inventory.EndOperation(worker);
  context.runs.Ended();
}

Status RecordPlan(const OperationContext& context, WorkerId worker, const Plan& plan, bool after) {
  const auto journal_state = [](SegmentState state) {
    if (state == SegmentState::kOffloaded) return JournalState::kOffloaded;
    return state == SegmentState::kDiscarded ? JournalState::kDiscarded : JournalState::kResident;
  };
  const PoolMemory& pool = context.images.pool().memory();
  std::vector<JournalRecord> records;
  for (const PlannedArena& arena : plan.arenas) {
    for (const PlannedSegment& segment : arena.segments) {
      const SegmentState state = after ? segment.to : segment.from;
      records.push_back(SegmentRecorded{segment.id, worker, arena.tag, segment.offset, segment.size,
                                        journal_state(state)});
      if (state != SegmentState::kOffloaded || segment.image == nullptr || pool.fd() < 0) continue;
      ImageRecorded image{segment.id, {}};
      for (const HostPool::Block& block : segment.image->blocks()) {
        image.blocks.push_back({pool.Place(block.data), block.size});
      }
      records.push_back(std::move(image));
    }
  }
  return context.keeper.Record(records);
}

void RecordFreed(const OperationContext& context, WorkerId worker, SegmentId segment) {
  if (const Status recorded = context.keeper.Record({SegmentFreed{segment}}); !recorded.ok()) {
    log::Error("worker {}: segment {} freed, not recorded: {}", WorkerName(worker), segment.value(),
               recorded);
  }
}

void RecordSurrendered(const OperationContext& context, const std::string& reservation) {
  if (reservation.empty()) return;
  const Bytes surrendered = context.admission.Surrendered(reservation);
  if (surrendered == Bytes(0)) return;
  if (const Status recorded =
          context.keeper.Record({ReservationSurrendered{reservation, surrendered}});
      !recorded.ok()) {
    log::Error("what reservation {} has lost with a sleep is not recorded: {}", reservation,
               recorded);
  }
}

void RollBackBooks(const OperationContext& context, WorkerLink& link, OperationId operation,
                   Plan& plan) {
  ReturnImages(context, plan);
  EndOrphans(context, link, operation, context.inventory.RollBack(link.worker(), plan));
  plan = Plan();  // its images, too, are gone when the operation is over
  EndOperation(context, link.worker());
}

void EndOrphans(const OperationContext& context, WorkerLink& link, OperationId operation,
                std::vector<Orphans> orphans) {
  for (Orphans& of_tag : orphans) {
    // The operation has written them to the journal once more.
    for (const SegmentId segment : of_tag.segments) RecordFreed(context, link.worker(), segment);
    if (of_tag.extents.empty()) continue;
    const Status unmapped = link.StartUnmap(operation, of_tag.tag, of_tag.extents)
                                .Wait(std::chrono::steady_clock::now() + context.worker_deadline);
    // The daemon's part ends in any case; what the worker still maps is its own loss, and its
    // addresses are not used again.
    if (unmapped.ok()) {
      context.inventory.Reclaim(link.worker(), of_tag);
    } else {
      log::Warning("worker {} keeps freed memory: {}", WorkerName(link.worker()), unmapped);
    }
    EndExtents(context, std::move(of_tag.extents));
  }
}

}  // namespace torpor
