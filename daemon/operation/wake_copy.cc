#include "daemon/operation/wake_copy.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/operation/pieces.h"
#include "daemon/operation/steps.h"

namespace torpor {
namespace {

// Extents that the worker is asked to map at once: so many that a message is worth it, and so few
// that little is left to map when the last bytes arrive.
constexpr size_t kMapBatch = 16;
// Extents to clear that are made for each step that is copied.
constexpr int kClearedPerStep = 2;

bool HasImage(const PlannedSegment& segment) { return segment.image != nullptr; }

class WakeSource final : public StepSource {
 public:
  WakeSource(const OperationContext& context, WorkerLink& link, OperationId operation, Draw draw,
             Plan& plan, const TransferEngine::Interrupt& wanted, OperationReport& report,
             Duration& handles)
      : context_(context),
        link_(link),
        operation_(operation),
        draw_(std::move(draw)),
        wanted_(wanted),
        report_(report),
        handles_(handles),
        clears_(*context.transfer) {
    for (PlannedArena& arena : plan.arenas) {
      std::vector<RangeSet::Range> ranges;
      for (const PlannedSegment& segment : arena.segments) {
        ranges.push_back({segment.offset, segment.size});
      }
      const bool copied = std::any_of(arena.segments.begin(), arena.segments.end(), HasImage);
      (copied ? copied_ : cleared_).push_back({&arena, PlanExtents(ranges), 0});
    }
  }

  Result<Next> NextStep(bool may_block, CopyStep& step) override {
    if (!gathered_.has_value()) {
      const PhaseTimer timer(&handles_);
      for (int i = 0; i < kClearedPerStep && steps_ > 0; ++i) {
        TORPOR_ASSIGN_OR_RETURN(const bool more, ClearOne());
        if (!more) break;
      }
      TORPOR_RETURN_IF_ERROR(Gather());
    }
    if (!gathered_.has_value()) return Next::kEnd;
    // What a daemon before this one has stored is not pinned yet.
    HostPool& pool = context_.images.pool();
    if (!pool.IsPinned(gathered_->host, gathered_->size)) {
      if (!may_block) return Next::kNotReady;
      TORPOR_RETURN_IF_ERROR(pool.AwaitPinned(gathered_->host, gathered_->size, wanted_));
    }
    ++steps_;
    step = *std::exchange(gathered_, std::nullopt);
    return Next::kStep;
  }

  // What is left to clear, after the last step.
  Status Finish() {
    {
      const PhaseTimer timer(&handles_);
      for (;;) {
        TORPOR_ASSIGN_OR_RETURN(const bool more, ClearOne());
        if (!more) break;
      }
    }
    TORPOR_RETURN_IF_ERROR(clears_.Finish());
    const PhaseTimer timer(&handles_);
    for (const Part& part : cleared_) {
      for (const ExtentPtr& extent : part.arena->extents) extent->UnmapForCopy();
    }
    return Status::Ok();
  }

  std::vector<WorkerLink::Pending>& maps() { return maps_; }

 private:
  struct Part {
    PlannedArena* arena = nullptr;
    std::vector<RangeSet::Range> extents;  // to be made
    size_t asked = 0;                      // of those made, the worker is asked to map so many
  };

  Status MakeExtent(Part& part) {
    std::vector<ExtentPtr>& extents = part.arena->extents;
    TORPOR_ASSIGN_OR_RETURN(ExtentPtr extent,
                            CreateExtent(context_, link_.worker(), part.arena->tag,
                                         part.extents[extents.size()], draw_));
    extents.push_back(std::move(extent));
    const bool last = extents.size() == part.extents.size();
    if (!last && extents.size() - part.asked < kMapBatch) return Status::Ok();
    maps_.push_back(
        link_.StartMap(operation_, part.arena->tag,
                       {extents.begin() + static_cast<ptrdiff_t>(part.asked), extents.end()}));
    part.asked = extents.size();
    return Status::Ok();
  }

  // Makes an extent in which nothing is copied, and clears it; false if there is none left.
  Result<bool> ClearOne() {
    while (next_cleared_ < cleared_.size()) {
      Part& part = cleared_[next_cleared_];
      if (part.arena->extents.size() == part.extents.size()) {
        ++next_cleared_;
        continue;
      }
      TORPOR_RETURN_IF_ERROR(MakeExtent(part));
      Extent& extent = *part.arena->extents.back();
      TORPOR_ASSIGN_OR_RETURN(const DeviceAddress address, extent.MapForCopy());
      TORPOR_RETURN_IF_ERROR(clears_.Add(address, extent.size()));
      return true;
    }
    return false;
  }

  PieceWalk::ExtentAt MakeExtentsOf(Part& part) {
    return [this, &part, next = size_t{0}](Bytes offset) mutable -> Result<Extent*> {
      const std::vector<ExtentPtr>& made = part.arena->extents;
      while (next < part.extents.size()) {
        if (next == made.size()) TORPOR_RETURN_IF_ERROR(MakeExtent(part));
        if (made[next]->end() > offset) return made[next].get();
        ++next;
      }
      return Internal("EXTENT_MISSING", "a segment has a part without memory")
          .With("offset", offset.value());
    };
  }

  // The next step: pieces that continue each other at both ends. Clears the others.
  Status Gather() {
    for (;;) {
      if (!piece_.has_value()) TORPOR_RETURN_IF_ERROR(NextPiece());
      if (!piece_.has_value()) return Status::Ok();
      if (piece_->host == nullptr) {
        TORPOR_RETURN_IF_ERROR(clears_.Add(piece_->device, piece_->size));
        piece_.reset();
        continue;
      }
      if (!gathered_.has_value()) {
        gathered_ = CopyStep{piece_->device, piece_->host, Bytes(0)};
      } else if (gathered_->device + gathered_->size != piece_->device ||
                 gathered_->host + gathered_->size.value() != piece_->host ||
                 gathered_->size + piece_->size > kMaxCopyStep) {
        return Status::Ok();
      }
      gathered_->size += std::exchange(piece_, std::nullopt)->size;
    }
  }

  Status NextPiece() {
    while (next_copied_ < copied_.size()) {
      Part& part = copied_[next_copied_];
      if (walk_ == nullptr) {
        report_.Enter(OperationReport::Phase::kCopy, part.arena->tag);
        walk_ = std::make_unique<PieceWalk>(
            *part.arena, MakeExtentsOf(part),
            [](const PlannedSegment& /*segment*/, const ImageChunk* /*chunk*/) { return true; });
      }
      TORPOR_ASSIGN_OR_RETURN(piece_, walk_->Next());
      if (piece_.has_value()) return Status::Ok();
      walk_.reset();
      ++next_copied_;
    }
    return Status::Ok();
  }

  const OperationContext& context_;
  WorkerLink& link_;
  const OperationId operation_;
  Draw draw_;
  const TransferEngine::Interrupt& wanted_;
  OperationReport& report_;
  Duration& handles_;
  ClearRun clears_;
  std::vector<Part> copied_;
  std::vector<Part> cleared_;
  size_t next_copied_ = 0;
  size_t next_cleared_ = 0;
  int64_t steps_ = 0;
  std::unique_ptr<PieceWalk> walk_;
  std::optional<Piece> piece_;
  std::optional<CopyStep> gathered_;
  std::vector<WorkerLink::Pending> maps_;
};

// Of a plan that was pinned long ago this asks for nothing.
void DemandImages(const OperationContext& context, const Plan& plan) {
  HostPool& pool = context.images.pool();
  std::vector<HostPool::Block> blocks;
  for (const PlannedArena& arena : plan.arenas) {
    for (const PlannedSegment& segment : arena.segments) {
      if (!HasImage(segment)) continue;
      for (const HostPool::Block& block : segment.image->blocks()) {
        if (!pool.IsPinned(block.data, block.size)) blocks.push_back(block);
      }
    }
  }
  if (!blocks.empty()) pool.Demand(blocks);
}

}  // namespace

Status CreateAndFill(const OperationContext& context, WorkerLink& link, OperationId operation,
                     const WakeSpec& spec, Draw draw, Plan& plan, OperationReport& report,
                     WorkerOutcome& outcome) {
  report.Enter(OperationReport::Phase::kHandles);
  DemandImages(context, plan);
  const TransferEngine::Interrupt wanted = [&] { return CheckWanted(spec.deadline, spec.cancel); };
  WakeSource source(context, link, operation, std::move(draw), plan, wanted, report,
                    outcome.times.handles);
  Status status;
  {
    const PhaseTimer timer(&outcome.times.copy);
    status = context.transfer->ToDevice(source, spec.priority, wanted,
                                        [&](Bytes size) { report.Arrived(size); });
  }
  if (status.ok()) status = source.Finish();
  const PhaseTimer timer(&outcome.times.worker);
  report.Enter(OperationReport::Phase::kWorker);
  const Status mapped =
      WorkerLink::WaitForAll(source.maps(), {context.worker_deadline, spec.deadline, spec.cancel});
  return status.ok() ? mapped : status;
}

}  // namespace torpor
