#include <utility>

#include "daemon/log.h"
#include "daemon/operation/operation.h"
#include "daemon/operation/steps.h"

namespace torpor {

Result<NewSegment> AllocateSegment(const OperationContext& context, WorkerId worker,
                                   const std::string& tag, Bytes size,
                                   std::optional<Draw> granted) {
  context.images.pool().Yield();
  NewSegment segment;
  TORPOR_ASSIGN_OR_RETURN(segment.placement, context.inventory.Place(worker, tag, size));
  const Inventory::Placement& placement = segment.placement;
  if (placement.mapped) {
    if (const Status recorded =
            context.keeper.Record({SegmentRecorded{placement.segment, worker, tag, placement.offset,
                                                   placement.size, JournalState::kResident}});
        !recorded.ok()) {
      (void)context.inventory.Free(worker, placement.segment);
      return recorded;
    }
    return segment;
  }
  const auto ask = [&] {
    const auto info = context.inventory.FindWorker(worker);
    return context.admission.DrawDevice(placement.size,
                                        info.has_value() ? info->reservation : std::string());
  };
  Result<Draw> draw = granted.has_value() && granted->size() == placement.size
                          ? Result<Draw>(*std::move(granted))
                          : ask();
  Result<std::vector<ExtentPtr>> extents =
      draw.ok() ? CreateExtents(context, worker, tag, {{placement.offset, placement.size}}, *draw)
                : Result<std::vector<ExtentPtr>>(draw.status());
  if (!extents.ok()) {
    (void)context.inventory.Abandon(worker, placement.segment);
    return extents.status();
  }
  segment.extents = *std::move(extents);
  if (const Status added = context.inventory.AddExtents(worker, tag, segment.extents);
      !added.ok()) {
    EndExtents(context, std::move(segment.extents));
    return added;
  }
  return segment;
}

Status FinishAllocation(const OperationContext& context, WorkerId worker, SegmentId id,
                        const Status& mapped) {
  Status status = mapped;
  if (status.ok()) {
    TORPOR_ASSIGN_OR_RETURN(const Inventory::SegmentInfo info,
                            context.inventory.Describe(worker, id));
    // In memory that was mapped already: recorded at once, and perhaps asleep by now.
    if (!info.pending) return Status::Ok();
    status = context.keeper.Record(
        {SegmentRecorded{id, worker, info.tag, info.offset, info.size, JournalState::kResident}});
    if (status.ok()) return context.inventory.Publish(worker, id);
  }
  TORPOR_ASSIGN_OR_RETURN(std::vector<ExtentPtr> extents, context.inventory.Abandon(worker, id));
  EndExtents(context, std::move(extents));
  // That the worker could not map it is what the worker said, not an error of this call.
  return mapped.ok() ? status : Status::Ok();
}

Result<std::vector<ExtentPtr>> FreeSegment(const OperationContext& context, WorkerId worker,
                                           SegmentId id) {
  // Its blocks may be another's only once the journal knows that they are not this one's.
  const std::shared_ptr<Image> image = context.inventory.ImageOf(worker, id);
  TORPOR_ASSIGN_OR_RETURN(std::vector<ExtentPtr> extents, context.inventory.Free(worker, id));
  RecordFreed(context, worker, id);
  return extents;
}

void FinishFree(const OperationContext& context, WorkerId worker, SegmentId id) {
  if (context.inventory.ForgetLost(worker, id)) return RecordFreed(context, worker, id);
  EndExtents(context, context.inventory.Freed(worker, id));
}

}  // namespace torpor
