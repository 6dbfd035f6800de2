#include "client/demo/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace torpor::demo {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(PlacementTest, SmallTensorsShareABlock) {
  const Placement placement = Place({1000, 3, kMiB, kMiB});
  EXPECT_EQ(placement.segments, (std::vector<uint64_t>{2 * kMiB, 2 * kMiB}));
  EXPECT_EQ(placement.spots[1].segment, 0u);
  EXPECT_EQ(placement.spots[1].offset, 1024u);
  EXPECT_EQ(placement.spots[2].offset, 1536u);
  EXPECT_EQ(placement.spots[3].segment, 1u);
}

TEST(PlacementTest, ALargeTensorHasItsOwnSegment) {
  const Placement placement = Place({10 * kMiB + 1, 5 * kMiB, 10 * kMiB, 5 * kMiB});
  EXPECT_EQ(placement.segments, (std::vector<uint64_t>{12 * kMiB, 20 * kMiB, 10 * kMiB}));
  EXPECT_EQ(placement.spots[3].segment, 1u);
  EXPECT_EQ(placement.spots[3].offset, 5 * kMiB);
}

TEST(PlacementTest, NothingForNothing) {
  EXPECT_TRUE(Place({}).segments.empty());
  EXPECT_TRUE(Place({0, 0}).segments.empty());
}

TEST(PlacementTest, TensorsNeitherOverlapNorLeaveTheirSegment) {
  std::vector<uint64_t> sizes;
  for (uint64_t i = 1; i < 400; ++i) sizes.push_back(i * i * i % (12 * kMiB) + i % 2);
  const Placement placement = Place(sizes);
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> used(placement.segments.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    const Placement::Spot& spot = placement.spots[i];
    EXPECT_EQ(spot.offset % 512, 0u);
    EXPECT_LE(spot.offset + sizes[i], placement.segments[spot.segment]);
    used[spot.segment].emplace_back(spot.offset, spot.offset + sizes[i]);
  }
  for (auto& ranges : used) {
    ASSERT_FALSE(ranges.empty());
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  }
}

}  // namespace
}  // namespace torpor::demo
