#include "daemon/operation/pieces.h"

#include <algorithm>

namespace torpor {

Result<std::optional<Piece>> PieceWalk::Next() {
  for (; segment_ < arena_.segments.size(); ++segment_, chunk_ = 0, at_ = Bytes(0)) {
    const PlannedSegment& segment = arena_.segments[segment_];
    const bool has_image = segment.image != nullptr;
    const size_t chunks = has_image ? segment.image->chunks().size() : 1;
    for (; chunk_ < chunks; ++chunk_, at_ = Bytes(0)) {
      ImageChunk* const chunk = has_image ? &segment.image->chunks()[chunk_] : nullptr;
      const Bytes length = has_image ? chunk->length : segment.size;
      if (at_ == length || (at_ == Bytes(0) && !wanted_(segment, chunk))) continue;
      Piece piece;
      piece.chunk = chunk;
      piece.position = segment.offset + (has_image ? chunk->offset : Bytes(0)) + at_;
      if (extent_ == nullptr || piece.position >= extent_->end()) {
        TORPOR_ASSIGN_OR_RETURN(extent_, extent_at_(piece.position));
        TORPOR_ASSIGN_OR_RETURN(base_, extent_->MapForCopy());
      }
      if (piece.position < extent_->offset()) {
        return Internal("EXTENT_MISSING", "a segment has a part without memory")
            .With("segment", segment.id.value())
            .With("offset", piece.position.value());
      }
      piece.device = base_ + (piece.position - extent_->offset());
      piece.size = std::min(length - at_, extent_->end() - piece.position);
      if (has_image) piece.host = chunk->data + at_.value();
      at_ += piece.size;
      return std::optional<Piece>(piece);
    }
  }
  return std::optional<Piece>();
}

PieceWalk::ExtentAt ExtentsOf(const PlannedArena& arena) {
  return [next = arena.extents.begin(),
          end = arena.extents.end()](Bytes offset) mutable -> Result<Extent*> {
    while (next != end && (*next)->end() <= offset) ++next;
    if (next != end) return next->get();
    return Internal("EXTENT_MISSING", "a segment has a part without memory")
        .With("offset", offset.value());
  };
}

// --- ChunkDigests

Status ChunkDigests::Add(const Piece& piece) {
  const bool new_chunk = chunks_.empty() || chunks_.back().chunk != piece.chunk;
  if (new_chunk) chunks_.push_back({piece.position, piece.chunk});
  // A part belongs to one chunk.
  const bool cut = new_chunk && piece.position % kDigestPart != Bytes(0);
  if (size_ == Bytes(0) || cut || device_ + size_ != piece.device ||
      position_ + size_ != piece.position) {
    TORPOR_RETURN_IF_ERROR(Flush());
    device_ = piece.device;
    position_ = piece.position;
  }
  size_ += piece.size;
  return Status::Ok();
}

Status ChunkDigests::Flush() {
  if (size_ == Bytes(0)) return Status::Ok();
  Status added = run_.Add(device_, size_, position_);
  size_ = Bytes(0);
  return added;
}

Result<std::vector<std::pair<ImageChunk*, PartDigest>>> ChunkDigests::Finish() {
  TORPOR_RETURN_IF_ERROR(Flush());
  std::vector<std::pair<ImageChunk*, PartDigest>> digests;
  digests.reserve(chunks_.size());
  size_t next = 0;
  TORPOR_RETURN_IF_ERROR(run_.Finish([&](Bytes position, const PartDigest& digest) {
    while (next < chunks_.size() && chunks_[next].position <= position) {
      digests.emplace_back(chunks_[next++].chunk, PartDigest());
    }
    digests.back().second += digest;
  }));
  return digests;
}

}  // namespace torpor
