#include "daemon/operation/steps.h"

#include <algorithm>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/shared_runs.h"

namespace torpor {

Result<std::vector<ExtentPtr>> CreateExtents(const OperationContext& context, WorkerId worker,
                                             const std::vector<RangeSet::Range>& ranges,
                                             Draw& draw) {
  const std::vector<RangeSet::Range> planned = PlanExtents(ranges);
  const std::vector<ExtentId> ids = context.inventory.NewExtentIds(planned.size());
  std::vector<ExtentPtr> extents;
  for (size_t i = 0; i < planned.size(); ++i) {
    Result<ExtentPtr> extent = Extent::Create(context.memory, ids[i], planned[i].offset,
                                              planned[i].size, draw.Split(planned[i].size));
    Status status = extent.status();
    if (extent.ok()) {
      extents.push_back(*extent);
      status = context.keeper.HoldExtent(ids[i], worker, planned[i].size, (*extent)->fd());
      *extent = nullptr;
    }
    if (!status.ok()) {
      EndExtents(context, std::move(extents));
      return status;
    }
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

Result<std::vector<CopyStep>> PlanCopies(const PlannedArena& arena, bool to_host) {
  std::vector<CopyStep> steps;
  auto extent = arena.extents.begin();
  for (const PlannedSegment& segment : arena.segments) {
    if (segment.image == nullptr && to_host) continue;
    size_t chunk = 0;
    Bytes in_chunk{};
    for (Bytes at{}; at < segment.size;) {
      const Bytes offset = segment.offset + at;
      while (extent != arena.extents.end() && (*extent)->end() <= offset) ++extent;
      if (extent == arena.extents.end() || (*extent)->offset() > offset) {
        return Internal("EXTENT_MISSING", "a segment has a part without memory")
            .With("segment", segment.id.value())
            .With("offset", offset.value());
      }
      TORPOR_ASSIGN_OR_RETURN(const DeviceAddress base, (*extent)->MapForCopy());
      CopyStep step{base + (offset - (*extent)->offset()), nullptr,
                    std::min(segment.size - at, (*extent)->end() - offset)};
      if (segment.image != nullptr) {
        const ImageChunk& piece = segment.image->chunks()[chunk];
        step.host = piece.data + in_chunk.value();
        step.size = std::min(step.size, piece.length - in_chunk);
        in_chunk += step.size;
        if (in_chunk == piece.length) {
          ++chunk;
          in_chunk = Bytes(0);
        }
      }
      at += step.size;
      AppendStep(steps, step);
    }
  }
  return steps;
}

Status CheckWanted(TimePoint deadline, const CancelToken* cancel) {
  TORPOR_RETURN_IF_ERROR(CheckCancelled(cancel));
  if (std::chrono::steady_clock::now() < deadline) return Status::Ok();
  return DeadlineExceeded("OPERATION_DEADLINE", "the operation did not finish in time");
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
  for (const PlannedArena& arena : plan.arenas) {
    for (const PlannedSegment& segment : arena.segments) {
      TORPOR_RETURN_IF_ERROR(context.keeper.Record(
          SegmentRecorded{segment.id, worker, arena.tag, segment.offset, segment.size,
                          journal_state(after ? segment.to : segment.from)}));
    }
  }
  return Status::Ok();
}

void RecordFreed(const OperationContext& context, WorkerId worker, SegmentId segment) {
  if (const Status recorded = context.keeper.Record(SegmentFreed{segment}); !recorded.ok()) {
    log::Error("worker {}: segment {} freed, not recorded: {}", WorkerName(worker), segment.value(),
               recorded);
  }
}

void RollBackBooks(const OperationContext& context, WorkerLink& link, OperationId operation,
                   Plan& plan) {
  EndOrphans(context, link, operation, context.inventory.RollBack(link.worker(), plan));
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
