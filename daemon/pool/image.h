#ifndef TORPOR_DAEMON_POOL_IMAGE_H_
#define TORPOR_DAEMON_POOL_IMAGE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/admission/admission.h"
#include "daemon/pool/host_pool.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

constexpr Bytes kImageChunk = MiB(2);

enum class Encoding : uint8_t { kPlain };

// Where one chunk of a segment lies in the host pool.
struct ImageChunk {
  std::byte* data = nullptr;
  Bytes stored{};  // bytes in the pool
  Bytes length{};  // bytes of the segment
  Encoding encoding = Encoding::kPlain;
  // Of the bytes stored; absent ("unknown") from before the first overwritten byte until the copy
  // has arrived.
  std::optional<std::array<uint64_t, 2>> digest;
};

// The host copy of one segment: a table of chunks of at most kImageChunk bytes. Owns
// its room in the pool, which must outlive it. Not thread-safe; what the chunks point at belongs to
// whoever runs the segment's operation.
class Image {
 public:
  // `draw` is returned when the image ends. Errors as HostPool::Allocate.
  static Result<std::shared_ptr<Image>> Create(HostPool& pool, Bytes size, Draw draw);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  Bytes size() const { return size_; }
  // What it takes of the pool.
  Bytes stored() const { return stored_; }
  const std::vector<ImageChunk>& chunks() const { return chunks_; }

 private:
  Image(HostPool& pool, Bytes size, std::vector<HostPool::Block> blocks, Draw draw);

  HostPool& pool_;
  const Bytes size_;
  const std::vector<HostPool::Block> blocks_;
  Bytes stored_{};
  std::vector<ImageChunk> chunks_;
  const Draw draw_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_IMAGE_H_
