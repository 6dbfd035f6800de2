#include "client/demo/placement.h"

#include <optional>

namespace torpor::demo {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kAlignment = 512;
constexpr uint64_t kSmall = kMiB;
constexpr uint64_t kLarge = 10 * kMiB;

constexpr uint64_t RoundUp(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Blocks of one size, filled one after the other.
class Blocks {
 public:
  explicit Blocks(uint64_t block_size) : block_size_(block_size) {}

  Placement::Spot Take(uint64_t size, std::vector<uint64_t>* segments) {
    if (!current_ || used_ + size > block_size_) {
      current_ = segments->size();
      segments->push_back(block_size_);
      used_ = 0;
    }
    const Placement::Spot spot{*current_, used_};
    used_ += RoundUp(size, kAlignment);
    return spot;
  }

 private:
  const uint64_t block_size_;
  std::optional<size_t> current_;
  uint64_t used_ = 0;
};

}  // namespace

Placement Place(const std::vector<uint64_t>& sizes) {
  Placement placement;
  Blocks small(2 * kMiB);
  Blocks middle(20 * kMiB);
  for (const uint64_t size : sizes) {
    Placement::Spot spot;
    if (size >= kLarge) {
      spot.segment = placement.segments.size();
      placement.segments.push_back(RoundUp(size, 2 * kMiB));
    } else if (size > 0) {
      spot = (size <= kSmall ? small : middle).Take(size, &placement.segments);
    }
    placement.spots.push_back(spot);
  }
  return placement;
}

}  // namespace torpor::demo
