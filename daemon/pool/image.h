#ifndef TORPOR_DAEMON_POOL_IMAGE_H_
#define TORPOR_DAEMON_POOL_IMAGE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/admission/draw.h"
#include "daemon/pool/host_pool.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/digest.h"

namespace torpor {

class ImageStore;

constexpr Bytes kImageChunk = MiB(2);

enum class Encoding : uint8_t { kPlain };

// Where one chunk of a segment lies in the host pool.
struct ImageChunk {
  std::byte* data = nullptr;
  Bytes stored{};  // bytes in the pool
  Bytes offset{};  // in the segment
  Bytes length{};  // bytes of the segment
  Encoding encoding = Encoding::kPlain;
  // Of the bytes stored, by their position in the segment's arena; absent ("unknown") from before
  // the first overwritten byte until the copy has arrived.
  std::optional<PartDigest> digest;
  // Copied by the sleep that holds the image. Copy and digest read device memory one after the
  // other: if that sleep is taken back, nobody vouches for their being of the same bytes.
  bool fresh = false;
};

// The host copy of one segment: a table of chunks of at most kImageChunk bytes. Held: it belongs to
// a segment that sleeps, or to the operation that moves it, which alone may touch the chunks.
// Clean: its segment is resident, and the store may take its bytes when it needs the room.
class Image {
 public:
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  Bytes size() const { return size_; }
  // What it takes of the pool; 0 once the store has taken its bytes. Thread-safe.
  Bytes stored() const;
  bool held() const;  // thread-safe

  // For whoever holds it.
  std::vector<ImageChunk>& chunks() { return chunks_; }
  const std::vector<ImageChunk>& chunks() const { return chunks_; }
  const std::vector<HostPool::Block>& blocks() const { return blocks_; }

 private:
  friend class ImageStore;
  enum class State : uint8_t { kHeld, kClean, kTaken };

  Image(ImageStore& store, Bytes size, std::vector<HostPool::Block> blocks, Draw draw);

  ImageStore& store_;
  const Bytes size_;
  // The rest is guarded by the store's mutex, what chunks hold by the holder.
  Bytes stored_{};
  State state_ = State::kHeld;
  std::list<Image*>::iterator place_;  // among the clean ones
  std::vector<HostPool::Block> blocks_;
  std::vector<ImageChunk> chunks_;
  Draw draw_;
};

// All images of a pool. Room that clean images take counts as free: they go, the least recently
// used first, when a new image needs it. Thread-safe; must outlive its images.
class ImageStore {
 public:
  explicit ImageStore(HostPool& pool) : pool_(pool) {}

  HostPool& pool() { return pool_; }

  // A held image with room for `size` bytes and all digests unknown. `draw` is of that room, and
  // returned when the image is clean or ends. Errors as HostPool::Allocate.
  Result<std::shared_ptr<Image>> Create(Bytes size, Draw draw) EXCLUDES(mutex_);
  // A held image of `size` bytes that are there already, in `blocks` (HostPool::TakeAt), which end
  // with it; all digests unknown. INVALID_ARGUMENT BAD_BLOCK: their sizes do not fit together.
  Result<std::shared_ptr<Image>> Restore(Bytes size, std::vector<HostPool::Block> blocks, Draw draw)
      EXCLUDES(mutex_);
  // A clean image is held again, with all it has, and draws; false if its bytes are gone.
  bool Hold(Image& image, Draw& draw) EXCLUDES(mutex_);
  // A held image becomes clean, the most recently used one.
  void Retire(Image& image) EXCLUDES(mutex_);

  // As the pool's, but `used` without what clean images take, which is `clean`.
  struct Stats {
    HostPool::Stats pool;
    Bytes clean{};
  };
  Stats stats() const EXCLUDES(mutex_);

 private:
  friend class Image;
  // Takes the bytes of the least recently used clean image, unless there is room for `size`; false
  // if there is none, or if all of them together do not make that room.
  bool MakeRoom(Bytes size) EXCLUDES(mutex_);
  void End(Image& image) EXCLUDES(mutex_);

  HostPool& pool_;
  mutable Mutex mutex_;
  std::list<Image*> clean_ GUARDED_BY(mutex_);  // the least recently used one first
  Bytes clean_bytes_ GUARDED_BY(mutex_){};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_IMAGE_H_
