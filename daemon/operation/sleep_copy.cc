#include "daemon/operation/sleep_copy.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "daemon/operation/pieces.h"
#include "daemon/operation/steps.h"

namespace torpor {
namespace {

bool IsUnknown(const PlannedSegment& segment, const ImageChunk* chunk) {
  return segment.to == SegmentState::kOffloaded && chunk != nullptr && !chunk->digest.has_value();
}

bool IsKnown(const PlannedSegment& segment, const ImageChunk* chunk) {
  return segment.to == SegmentState::kOffloaded && chunk != nullptr && chunk->digest.has_value();
}

// The chunks without a digest of all arenas, in steps; digests them on the way.
class UnknownChunks final : public StepSource {
 public:
  UnknownChunks(const OperationContext& context, Plan& plan,
                const TransferEngine::Interrupt& wanted, OperationReport& report, Duration& handles)
      : context_(context), plan_(plan), wanted_(wanted), report_(report), handles_(handles) {}

  Result<Next> NextStep(bool may_block, CopyStep& step) override {
    if (!gathered_.has_value()) TORPOR_RETURN_IF_ERROR(Gather());
    if (!gathered_.has_value()) return Next::kEnd;
    if (!context_.images.pool().IsPinned(gathered_->host, gathered_->size)) {
      if (!may_block) return Next::kNotReady;
      TORPOR_RETURN_IF_ERROR(
          context_.images.pool().AwaitPinned(gathered_->host, gathered_->size, wanted_));
    }
    if (digest_status_.ok()) digest_status_ = digests_.back()->Flush();
    step = *std::exchange(gathered_, std::nullopt);
    return Next::kStep;
  }

  // After all of it was copied. Without digests the next sleep copies all of it again.
  void SetDigests() {
    for (const auto& of_arena : digests_) {
      if (!digest_status_.ok()) break;
      const auto digests = of_arena->Finish();
      digest_status_ = digests.status();
      if (!digests.ok()) break;
      for (const auto& [chunk, digest] : *digests) {
        chunk->digest = digest;
        chunk->fresh = true;
      }
    }
    if (!digest_status_.ok()) log::Warning("no digest of what was copied: {}", digest_status_);
  }

 private:
  // The next step: pieces that continue each other at both ends.
  Status Gather() {
    while (true) {
      if (!piece_.has_value()) TORPOR_RETURN_IF_ERROR(NextPiece());
      if (!piece_.has_value()) return Status::Ok();
      if (!gathered_.has_value()) {
        gathered_ = CopyStep{piece_->device, piece_->host, Bytes(0)};
      } else if (gathered_->device + gathered_->size != piece_->device ||
                 gathered_->host + gathered_->size.value() != piece_->host ||
                 gathered_->size + piece_->size > kMaxCopyStep) {
        return Status::Ok();
      }
      gathered_->size += piece_->size;
      Digest(*std::exchange(piece_, std::nullopt));
    }
  }

  Status NextPiece() {
    const PhaseTimer timer(&handles_);
    while (arena_ < plan_.arenas.size()) {
      PlannedArena& arena = plan_.arenas[arena_];
      if (walk_ == nullptr) {
        walk_ = std::make_unique<PieceWalk>(arena, ExtentsOf(arena), IsUnknown);
        digests_.push_back(std::make_unique<ChunkDigests>(*context_.transfer));
        entered_ = false;
      }
      TORPOR_ASSIGN_OR_RETURN(piece_, walk_->Next());
      if (piece_.has_value()) {
        if (!std::exchange(entered_, true)) {
          report_.Enter(OperationReport::Phase::kCopy, arena.tag);
        }
        return Status::Ok();
      }
      walk_.reset();
      ++arena_;
    }
    return Status::Ok();
  }

  void Digest(const Piece& piece) {
    if (digest_status_.ok()) digest_status_ = digests_.back()->Add(piece);
  }

  const OperationContext& context_;
  Plan& plan_;
  const TransferEngine::Interrupt& wanted_;
  OperationReport& report_;
  Duration& handles_;
  size_t arena_ = 0;
  std::unique_ptr<PieceWalk> walk_;  // of the arena
  bool entered_ = false;
  std::optional<Piece> piece_;        // that did not fit
  std::optional<CopyStep> gathered_;  // but not yet given
  std::vector<std::unique_ptr<ChunkDigests>> digests_;
  Status digest_status_;
};

// Makes the digests of chunks unknown that are no longer those of the device memory. Gives the
// bytes of the others.
Result<Bytes> CompareChunks(const OperationContext& context, Plan& plan) {
  std::vector<std::unique_ptr<ChunkDigests>> runs;
  for (PlannedArena& arena : plan.arenas) {
    auto& run = runs.emplace_back(std::make_unique<ChunkDigests>(*context.transfer));
    PieceWalk walk(arena, ExtentsOf(arena), IsKnown);
    for (;;) {
      TORPOR_ASSIGN_OR_RETURN(const std::optional<Piece> piece, walk.Next());
      if (!piece.has_value()) break;
      TORPOR_RETURN_IF_ERROR(run->Add(*piece));
    }
  }
  Bytes same{};
  for (const auto& run : runs) {
    TORPOR_ASSIGN_OR_RETURN(const auto digests, run->Finish());
    for (const auto& [chunk, digest] : digests) {
      if (*chunk->digest == digest) {
        same += chunk->length;
      } else {
        chunk->digest.reset();
      }
    }
  }
  return same;
}

// Host memory that copies may go to.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> Create(Driver& driver) {
    void* const map = ::mmap(nullptr, kMaxCopyStep.size(), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return ErrnoStatus(errno, "map memory to compare images with");
    std::unique_ptr<Scratch> scratch(new Scratch(driver, static_cast<std::byte*>(map)));
    TORPOR_RETURN_IF_ERROR(driver.RegisterHost(map, kMaxCopyStep));
    scratch->registered_ = true;
    return scratch;
  }
  ~Scratch() {
    if (registered_) (void)driver_.UnregisterHost(data_);
    ::munmap(data_, kMaxCopyStep.size());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const { return data_; }

 private:
  Scratch(Driver& driver, std::byte* data) : driver_(driver), data_(data) {}
  Driver& driver_;
  std::byte* const data_;
  bool registered_ = false;
};

class StepList final : public StepSource {
 public:
  explicit StepList(const std::vector<CopyStep>& steps) : steps_(steps) {}
  Result<Next> NextStep(bool /*may_block*/, CopyStep& step) override {
    if (next_ == steps_.size()) return Next::kEnd;
    step = steps_[next_++];
    return Next::kStep;
  }

 private:
  const std::vector<CopyStep>& steps_;
  size_t next_ = 0;
};

// Makes the digests of chunks unknown whose bytes differ although their digests do not. Gives the
// bytes of those.
Result<Bytes> VerifyChunks(const OperationContext& context, const SleepSpec& spec, Plan& plan) {
  const TransferEngine::Interrupt wanted = [&] { return CheckWanted(spec.deadline, spec.cancel); };
  TORPOR_ASSIGN_OR_RETURN(const auto scratch, Scratch::Create(context.memory.driver()));
  Bytes wrong{};
  std::vector<Piece> pieces;
  std::vector<CopyStep> steps;
  Bytes filled{};
  const auto compare = [&]() -> Status {
    StepList list(steps);
    TORPOR_RETURN_IF_ERROR(context.transfer->ToHost(list, spec.priority, wanted));
    for (size_t i = 0; i < pieces.size(); ++i) {
      ImageChunk& chunk = *pieces[i].chunk;
      if (!chunk.digest.has_value()) continue;
      if (std::memcmp(steps[i].host, pieces[i].host, steps[i].size.size()) == 0) continue;
      log::Error("an image differs from device memory with the same digest: {} at {} of its arena",
                 FormatBytes(pieces[i].size), FormatBytes(pieces[i].position));
      wrong += chunk.length;
      chunk.digest.reset();
    }
    pieces.clear();
    steps.clear();
    filled = Bytes(0);
    return Status::Ok();
  };
  for (PlannedArena& arena : plan.arenas) {
    PieceWalk walk(arena, ExtentsOf(arena), IsKnown);
    for (;;) {
      TORPOR_ASSIGN_OR_RETURN(const std::optional<Piece> piece, walk.Next());
      if (!piece.has_value()) break;
      if (filled + piece->size > kMaxCopyStep) TORPOR_RETURN_IF_ERROR(compare());
      steps.push_back({piece->device, scratch->data() + filled.value(), piece->size});
      pieces.push_back(*piece);
      filled += piece->size;
    }
  }
  TORPOR_RETURN_IF_ERROR(compare());
  return wrong;
}

void ForgetDigests(Plan& plan) {
  for (PlannedArena& arena : plan.arenas) {
    for (PlannedSegment& segment : arena.segments) {
      if (segment.to != SegmentState::kOffloaded) continue;
      for (ImageChunk& chunk : segment.image->chunks()) chunk.digest.reset();
    }
  }
}

}  // namespace

Status TakeImages(const OperationContext& context, const std::string& reservation,
                  const SleepSpec& spec, Plan& plan) {
  const auto for_each = [&](const auto& take) -> Status {
    for (PlannedArena& arena : plan.arenas) {
      for (PlannedSegment& segment : arena.segments) {
        if (segment.to == SegmentState::kOffloaded) TORPOR_RETURN_IF_ERROR(take(segment));
      }
    }
    return Status::Ok();
  };
  const auto draw = [&](const PlannedSegment& segment) {
    return context.admission.DrawHost(RoundUp(segment.size, HostPool::kUnit), reservation);
  };
  // First what is there, since new images may take it.
  TORPOR_RETURN_IF_ERROR(for_each([&](PlannedSegment& segment) -> Status {
    const std::shared_ptr<Image> image = std::exchange(segment.image, nullptr);
    if (image == nullptr) return Status::Ok();
    TORPOR_ASSIGN_OR_RETURN(Draw room, draw(segment));
    segment.reused = context.images.Hold(*image, room);
    if (!segment.reused) return Status::Ok();
    segment.image = image;
    for (ImageChunk& chunk : image->chunks()) chunk.fresh = false;
    return Status::Ok();
  }));
  std::vector<HostPool::Block> blocks;
  TORPOR_RETURN_IF_ERROR(for_each([&](PlannedSegment& segment) -> Status {
    if (segment.reused) return Status::Ok();
    TORPOR_RETURN_IF_ERROR(CheckWanted(spec.deadline, spec.cancel));
    TORPOR_ASSIGN_OR_RETURN(Draw room, draw(segment));
    TORPOR_ASSIGN_OR_RETURN(segment.image, context.images.Create(segment.size, std::move(room)));
    const auto& more = segment.image->blocks();
    blocks.insert(blocks.end(), more.begin(), more.end());
    return Status::Ok();
  }));
  context.images.pool().Demand(blocks);
  return Status::Ok();
}

void ReturnImages(const OperationContext& context, Plan& plan) {
  for (PlannedArena& arena : plan.arenas) {
    for (PlannedSegment& segment : arena.segments) {
      if (!std::exchange(segment.reused, false)) continue;
      for (ImageChunk& chunk : segment.image->chunks()) {
        if (chunk.fresh) chunk.digest.reset();
      }
      context.images.Retire(*segment.image);
    }
  }
}

Status CopyToImages(const OperationContext& context, const SleepSpec& spec, Plan& plan,
                    OperationReport& report, WorkerOutcome& outcome) {
  const TransferEngine::Interrupt wanted = [&] { return CheckWanted(spec.deadline, spec.cancel); };
  {
    const PhaseTimer timer(&outcome.times.digest);
    Result<Bytes> same = CompareChunks(context, plan);
    if (same.ok() && context.verify_images) {
      const Result<Bytes> wrong = VerifyChunks(context, spec, plan);
      same = wrong.ok() ? Result<Bytes>(*same - *wrong) : wrong;
    }
    if (same.ok()) {
      report.Arrived(*same);
      outcome.unchanged = *same;
    } else {
      TORPOR_RETURN_IF_ERROR(wanted());
      log::Warning("worker {}: no digests, so everything is copied: {}", outcome.name,
                   same.status());
      ForgetDigests(plan);
    }
  }
  const PhaseTimer timer(&outcome.times.copy);
  UnknownChunks unknown(context, plan, wanted, report, outcome.times.handles);
  TORPOR_RETURN_IF_ERROR(context.transfer->ToHost(unknown, spec.priority, wanted, [&](Bytes size) {
    report.Arrived(size);
    outcome.copied += size;
  }));
  unknown.SetDigests();
  return Status::Ok();
}

}  // namespace torpor
