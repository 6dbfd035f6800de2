#ifndef TORPOR_CLIENT_DEMO_PLACEMENT_H_
#define TORPOR_CLIENT_DEMO_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torpor::demo {

// Where tensors lie in segments that are allocated for them, as a caching allocator would ask for
// them: small tensors share blocks of 2 MiB, middle-sized ones blocks of 20 MiB, and one of 10 MiB
// or more has a segment to itself.
struct Placement {
  struct Spot {
    size_t segment = 0;  // into `segments`; without meaning for a size of 0
    uint64_t offset = 0;
  };
  std::vector<uint64_t> segments;  // sizes
  std::vector<Spot> spots;         // one for each tensor
};

Placement Place(const std::vector<uint64_t>& sizes);

}  // namespace torpor::demo

#endif  // TORPOR_CLIENT_DEMO_PLACEMENT_H_
