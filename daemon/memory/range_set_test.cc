#include "daemon/memory/range_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace torpor {
namespace {

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

Pairs All(const RangeSet& set) {
  Pairs pairs;
  for (const auto& [offset, size] : set.ranges()) pairs.emplace_back(offset.value(), size.value());
  return pairs;
}

RangeSet Of(const Pairs& pairs) {
  RangeSet set;
  for (const auto& [offset, size] : pairs) set.Put(Bytes(offset), Bytes(size));
  return set;
}

Pairs TakeWithin(RangeSet& set, int64_t offset, int64_t size) {
  Pairs pairs;
  for (const RangeSet::Range& range : set.TakeWithin(Bytes(offset), Bytes(size))) {
    pairs.emplace_back(range.offset.value(), range.size.value());
  }
  return pairs;
}

TEST(RangeSetTest, NeighboursBecomeOne) {
  EXPECT_EQ(All(Of({{0, 2}, {4, 2}})), (Pairs{{0, 2}, {4, 2}}));
  EXPECT_EQ(All(Of({{0, 2}, {2, 2}})), (Pairs{{0, 4}}));
  EXPECT_EQ(All(Of({{2, 2}, {0, 2}})), (Pairs{{0, 4}}));
  EXPECT_EQ(All(Of({{0, 2}, {4, 2}, {2, 2}})), (Pairs{{0, 6}}));
}

TEST(RangeSetTest, NothingIsNotARange) {
  EXPECT_EQ(All(Of({{3, 0}})), Pairs());
  EXPECT_EQ(Of({}).largest(), Bytes(0));
  EXPECT_EQ(Of({}).total(), Bytes(0));
}

TEST(RangeSetTest, TakesFromTheSmallestRangeThatHasIt) {
  RangeSet set = Of({{0, 10}, {20, 3}, {30, 5}});
  EXPECT_EQ(set.Take(Bytes(4)), Bytes(30));
  EXPECT_EQ(set.Take(Bytes(3)), Bytes(20));
  EXPECT_EQ(set.Take(Bytes(11)), std::nullopt);
  EXPECT_EQ(All(set), (Pairs{{0, 10}, {34, 1}}));
  EXPECT_EQ(set.total(), Bytes(11));
  EXPECT_EQ(set.largest(), Bytes(10));
}

TEST(RangeSetTest, CutsOutWhatLiesWithin) {
  RangeSet set = Of({{0, 10}, {20, 10}});
  EXPECT_EQ(TakeWithin(set, 10, 10), Pairs());
  EXPECT_EQ(TakeWithin(set, 5, 0), Pairs());
  EXPECT_EQ(TakeWithin(set, 4, 2), (Pairs{{4, 2}}));
  EXPECT_EQ(All(set), (Pairs{{0, 4}, {6, 4}, {20, 10}}));
  EXPECT_EQ(TakeWithin(set, 2, 20), (Pairs{{2, 2}, {6, 4}, {20, 2}}));
  EXPECT_EQ(All(set), (Pairs{{0, 2}, {22, 8}}));
  EXPECT_EQ(TakeWithin(set, 0, 100), (Pairs{{0, 2}, {22, 8}}));
  EXPECT_EQ(All(set), Pairs());
  EXPECT_EQ(set.total(), Bytes(0));
}

TEST(RangeSetTest, BehavesAsASetOfBytes) {
  constexpr int64_t kBytes = 200;
  std::mt19937 random(5);
  for (int round = 0; round < 4; ++round) {
    RangeSet set;
    std::vector<bool> model(kBytes, false);
    for (int step = 0; step < 2000; ++step) {
      const auto offset = static_cast<int64_t>(random() % kBytes);
      const auto size = 1 + static_cast<int64_t>(random() % 20);
      if (random() % 2 == 0) {
        // The longest absent range at `offset`.
        int64_t end = offset;
        while (end < std::min(kBytes, offset + size) && !model[end]) model[end++] = true;
        set.Put(Bytes(offset), Bytes(end - offset));
      } else if (random() % 2 == 0) {
        if (const auto taken = set.Take(Bytes(size))) {
          for (int64_t i = 0; i < size; ++i) {
            ASSERT_TRUE(model[taken->value() + i]);
            model[taken->value() + i] = false;
          }
        } else {
          ASSERT_LT(set.largest(), Bytes(size));
        }
      } else {
        int64_t taken = 0;
        for (const auto& [at, length] : TakeWithin(set, offset, size)) {
          ASSERT_GE(at, offset);
          ASSERT_LE(at + length, offset + size);
          taken += length;
        }
        for (int64_t i = offset; i < std::min(kBytes, offset + size); ++i) {
          taken -= model[i] ? 1 : 0;
          model[i] = false;
        }
        ASSERT_EQ(taken, 0);
      }
      Pairs expected;
      int64_t total = 0;
      for (int64_t i = 0; i < kBytes; ++i) {
        if (!model[i]) continue;
        ++total;
        if (i > 0 && model[i - 1]) {
          ++expected.back().second;
        } else {
          expected.emplace_back(i, 1);
        }
      }
      ASSERT_EQ(All(set), expected) << round << " " << step;
      ASSERT_EQ(set.total(), Bytes(total));
    }
  }
}

}  // namespace
}  // namespace torpor
