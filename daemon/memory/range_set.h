#ifndef TORPOR_DAEMON_MEMORY_RANGE_SET_H_
#define TORPOR_DAEMON_MEMORY_RANGE_SET_H_

#include <map>
#include <optional>
#include <vector>

#include "lib/base/units.h"

namespace torpor {

// A set of bytes as disjoint ranges; neighbours are one range. Not thread-safe.
class RangeSet {
 public:
  struct Range {
    Bytes offset{};
    Bytes size{};
  };

  // Adds a range that the set has nothing of.
  void Put(Bytes offset, Bytes size);
  // Takes `size` bytes out of the smallest range that has them, at its start.
  std::optional<Bytes> Take(Bytes size);
  // Takes everything that the set has of [offset, offset + size); gives it in ascending order.
  std::vector<Range> TakeWithin(Bytes offset, Bytes size);

  Bytes total() const { return total_; }
  // The largest range; 0 when empty. Linear in the number of ranges.
  Bytes largest() const;
  const std::map<Bytes, Bytes>& ranges() const { return ranges_; }

 private:
  std::map<Bytes, Bytes> ranges_;  // offset -> size
  Bytes total_{};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_RANGE_SET_H_
