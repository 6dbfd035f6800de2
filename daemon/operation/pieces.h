#ifndef TORPOR_DAEMON_OPERATION_PIECES_H_
#define TORPOR_DAEMON_OPERATION_PIECES_H_

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/memory/inventory.h"
#include "daemon/pool/image.h"
#include "daemon/transfer/transfer.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// A part of a segment that lies in one extent and, if the segment has an image, in one of its
// chunks.
struct Piece {
  DeviceAddress device;  // in the daemon's own mapping
  Bytes position{};      // in the arena
  Bytes size{};
  ImageChunk* chunk = nullptr;  // null without an image
  std::byte* host = nullptr;    // where it lies in the chunk; null likewise
};

// The pieces of an arena's part in a plan, in ascending order of their positions. Maps the extents
// for the daemon as it comes to them.
class PieceWalk {
 public:
  // The extent that holds the byte at `offset` of the arena; asked for ascending offsets.
  using ExtentAt = std::function<Result<Extent*>(Bytes offset)>;
  // Which segments, and which of their chunks.
  using Wanted = std::function<bool(const PlannedSegment&, const ImageChunk*)>;
  PieceWalk(PlannedArena& arena, ExtentAt extent_at, Wanted wanted)
      : arena_(arena), extent_at_(std::move(extent_at)), wanted_(std::move(wanted)) {}

  // Nothing at the end.
  Result<std::optional<Piece>> Next();

 private:
  PlannedArena& arena_;
  const ExtentAt extent_at_;
  const Wanted wanted_;
  size_t segment_ = 0;
  size_t chunk_ = 0;
  Bytes at_{};  // in the chunk, or in a segment without an image
  // The extent found last.
  Extent* extent_ = nullptr;
  DeviceAddress base_;
};

// ExtentAt over extents that are all there, in order.
PieceWalk::ExtentAt ExtentsOf(const PlannedArena& arena);

// Digests of chunks whose pieces all lie in one arena. Not thread-safe.
class ChunkDigests {
 public:
  explicit ChunkDigests(TransferEngine& engine) : run_(engine) {}

  // Pieces in ascending order, all those of a chunk. Begins with those that do not continue what
  // was added before. Errors as DigestRun::Add.
  Status Add(const Piece& piece);
  // Begins with all that was added.
  Status Flush();
  // Waits for all, and gives the digest of each chunk.
  Result<std::vector<std::pair<ImageChunk*, PartDigest>>> Finish();

 private:
  struct Begin {
    Bytes position{};  // of the chunk's first piece
    ImageChunk* chunk = nullptr;
  };

  DigestRun run_;
  std::vector<Begin> chunks_;  // in ascending order
  // Pieces that continue each other, to be digested by one call.
  DeviceAddress device_;
  Bytes position_{};
  Bytes size_{};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_PIECES_H_
