#include "daemon/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "daemon/memory/memory_fixture.h"
#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

constexpr int64_t kMost = kMaxExtent / MiB(1);

// Offsets and sizes in MiB.
Ranges Plan(const Ranges& wanted) {
  std::vector<RangeSet::Range> ranges;
  for (const auto& [offset, size] : wanted) ranges.push_back({MiB(offset), MiB(size)});
  Ranges plan;
  for (const RangeSet::Range& range : PlanExtents(ranges)) {
    EXPECT_EQ(range.offset % MiB(1), Bytes(0));
    plan.emplace_back(range.offset / MiB(1), range.size / MiB(1));
  }
  return plan;
}

TEST(PlanExtentsTest, NeighboursBecomeOne) {
  EXPECT_EQ(Plan({}), Ranges());
  EXPECT_EQ(Plan({{0, 2}, {2, 4}, {8, 2}}), (Ranges{{0, 6}, {8, 2}}));
}

TEST(PlanExtentsTest, LongRangesAreCut) {
  EXPECT_EQ(Plan({{0, kMost}}), (Ranges{{0, kMost}}));
  EXPECT_EQ(Plan({{2, kMost + 2}}), (Ranges{{2, kMost}, {kMost + 2, 2}}));
  EXPECT_EQ(Plan({{0, kMost - 8}, {kMost - 8, 100}, {kMost * 2, 1}}),
            (Ranges{{0, kMost}, {kMost, 92}, {kMost * 2, 1}}));
}

TEST(PlanExtentsTest, HugeRangesGetLargerExtentsInsteadOfMore) {
  const auto at_limit = Plan({{0, kMost * kMaxExtentsPerRange}});
  EXPECT_EQ(at_limit.size(), static_cast<size_t>(kMaxExtentsPerRange));
  EXPECT_EQ(at_limit[1].second, kMost);
  const auto beyond = Plan({{0, kMost * kMaxExtentsPerRange + 2}});
  EXPECT_LE(beyond.size(), static_cast<size_t>(kMaxExtentsPerRange));
  EXPECT_EQ(beyond[0].second, kMost * 2);
  EXPECT_EQ(beyond.back(), std::make_pair(kMost * kMaxExtentsPerRange, int64_t{2}));
}

class ArenaTest : public MemoryFixture {
 protected:
  static constexpr int kPages = 64;

  Arena::Place Take(int pages) { return *arena_.Take(Pages(pages)); }
  // A resident segment, in extents of its own unless it reuses a freed part.
  Segment& Allocate(int pages) {
    const Arena::Place place = Take(pages);
    Segment& segment = arena_.Add(std::make_unique<Segment>(SegmentId(++last_segment_), WorkerId(1),
                                                            "weights", place.offset, Pages(pages)));
    if (!place.mapped) arena_.AddExtents(Create({{place.offset, Pages(pages)}}));
    segment.Move(SegmentState::kResident);
    return segment;
  }
  void Move(SegmentState from, SegmentState to) {
    for (const auto& [offset, segment] : arena_.segments()) {
      if (segment->state() == from) segment->Move(to);
    }
  }
  void Sleep() {
    Move(SegmentState::kResident, SegmentState::kSleeping);
    std::vector<ExtentPtr> extents;
    for (const auto& [offset, extent] : arena_.extents()) extents.push_back(extent);
    arena_.DropExtents(extents);
    Move(SegmentState::kSleeping, SegmentState::kOffloaded);
  }
  void Wake() {
    std::vector<RangeSet::Range> ranges;
    for (const auto& [offset, segment] : arena_.segments()) {
      if (segment->state() == SegmentState::kOffloaded) ranges.push_back({offset, segment->size()});
    }
    Move(SegmentState::kOffloaded, SegmentState::kWaking);
    arena_.AddExtents(Create(ranges));
    Move(SegmentState::kWaking, SegmentState::kResident);
  }

  Arena arena_{"weights", Pages(kPages)};
  uint64_t last_segment_ = 0;
};

TEST_F(ArenaTest, PlacesSegmentsSideBySide) {
  EXPECT_EQ(Take(4).offset, Pages(0));
  EXPECT_EQ(Take(2).offset, Pages(4));
  EXPECT_FALSE(Take(1).mapped);
}

TEST_F(ArenaTest, TellsWhatIsLeftWhenItIsFull) {
  Take(60);
  const auto refused = arena_.Take(Pages(5));
  ASSERT_THAT(refused, HasReason("ARENA_EXHAUSTED"));
  EXPECT_EQ(refused.status().Number("requested_bytes"), Pages(5).value());
  EXPECT_EQ(refused.status().Number("largest_range_bytes"), Pages(4).value());
  EXPECT_EQ(refused.status().Number("arena_bytes"), Pages(kPages).value());
  EXPECT_THAT(arena_.Take(Pages(4)), IsOk());
}

TEST_F(ArenaTest, FindsASegmentById) {
  Segment& segment = Allocate(2);
  EXPECT_EQ(arena_.Find(segment.id()), &segment);
  arena_.Reclaim(arena_.Drop(segment.id()));
  EXPECT_EQ(arena_.Find(SegmentId(1)), nullptr);
}

TEST_F(ArenaTest, TheLastSegmentTakesItsExtentsWithIt) {
  const Segment& segment = Allocate(3);
  const std::vector<ExtentPtr> dead = arena_.Drop(segment.id());
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_TRUE(arena_.extents().empty());
  EXPECT_EQ(arena_.stranded(), Bytes(0));
}

// The worker still maps the extents: nothing else can be mapped there.
TEST_F(ArenaTest, AddressesStayTakenUntilTheyAreReclaimed) {
  const Segment& segment = Allocate(kPages);
  const std::vector<ExtentPtr> dead = arena_.Drop(segment.id());
  EXPECT_THAT(arena_.Take(Pages(1)), HasReason("ARENA_EXHAUSTED"));
  arena_.Reclaim(dead);
  EXPECT_EQ(Take(kPages).offset, Pages(0));
}

TEST_F(ArenaTest, AFreedPartOfALivingExtentIsStrandedAndReused) {
  Allocate(4);
  Allocate(4);
  Sleep();
  Wake();  // both in one extent now
  ASSERT_EQ(arena_.extents().size(), 1u);
  EXPECT_TRUE(arena_.Drop(SegmentId(1)).empty());
  EXPECT_EQ(arena_.stranded(), Pages(4));
  const Arena::Place place = Take(3);
  EXPECT_TRUE(place.mapped);
  EXPECT_EQ(place.offset, Pages(0));
  EXPECT_EQ(arena_.stranded(), Pages(1));
  EXPECT_FALSE(Take(2).mapped);  // too large for what is left of it
}

TEST_F(ArenaTest, FreedPartsAreNotReusedWhileAnythingMoves) {
  Allocate(4);
  Allocate(4);
  Sleep();
  Wake();
  arena_.Drop(SegmentId(1));
  for (const SegmentState to : {SegmentState::kSleeping, SegmentState::kResident}) {
    arena_.Find(SegmentId(2))->Move(to);
    EXPECT_EQ(arena_.moving(), to == SegmentState::kSleeping);
    EXPECT_EQ(Take(1).mapped, to == SegmentState::kResident);
  }
}

TEST_F(ArenaTest, StrandedPartsComeFreeWithASleep) {
  Allocate(4);
  Allocate(kPages - 4);
  Sleep();
  Wake();
  arena_.Drop(SegmentId(1));
  Sleep();
  EXPECT_EQ(arena_.stranded(), Bytes(0));
  const Arena::Place place = Take(4);
  EXPECT_EQ(place.offset, Pages(0));
  EXPECT_FALSE(place.mapped);
}

TEST_F(ArenaTest, ASegmentMaySpanExtents) {
  const Arena::Place place = Take(8);
  Segment& segment = arena_.Add(
      std::make_unique<Segment>(SegmentId(50), WorkerId(1), "weights", place.offset, Pages(8)));
  arena_.AddExtents(
      {*TryCreate(place.offset, Pages(3)), *TryCreate(place.offset + Pages(3), Pages(5))});
  segment.Move(SegmentState::kResident);
  Allocate(2);
  ASSERT_EQ(arena_.ExtentsOf(segment).size(), 2u);
  EXPECT_EQ(arena_.ExtentsOf(segment)[0]->offset(), Pages(0));
  EXPECT_EQ(arena_.ExtentsOf(segment)[1]->offset(), Pages(3));
  EXPECT_EQ(arena_.Drop(segment.id()).size(), 2u);
  EXPECT_EQ(arena_.extents().size(), 1u);
}

TEST_F(ArenaTest, OnlyTheDeadOnesOfAFreedSegmentsExtentsGo) {
  // Segments of 2, 3 and 2 pages in extents of 4 and 3.
  for (const int pages : {2, 3, 2}) Allocate(pages);
  Sleep();
  Move(SegmentState::kOffloaded, SegmentState::kWaking);
  arena_.AddExtents({*TryCreate(Pages(0), Pages(4)), *TryCreate(Pages(4), Pages(3))});
  Move(SegmentState::kWaking, SegmentState::kResident);
  EXPECT_TRUE(arena_.Drop(SegmentId(2)).empty());
  EXPECT_EQ(arena_.stranded(), Pages(3));
  const auto dead = arena_.Drop(SegmentId(1));
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_EQ(dead[0]->size(), Pages(4));
  EXPECT_EQ(arena_.stranded(), Pages(1));  // the page of the second segment in the living extent
}

TEST_F(ArenaTest, ASleepingSegmentLeavesPlainAddresses) {
  Allocate(4);
  Sleep();
  EXPECT_TRUE(arena_.Drop(SegmentId(1)).empty());
  EXPECT_EQ(Take(kPages).offset, Pages(0));
}

// Against a table of pages: who has each one, and whether memory backs it.
class ArenaModelTest : public ArenaTest, public ::testing::WithParamInterface<uint32_t> {
 protected:
  enum : int { kFree = 0, kStranded = -1, kLeaving = -2 };

  void Check() {
    std::vector<int> backed(kPages, 0);
    for (const auto& [offset, extent] : arena_.extents()) {
      bool lives = false;
      for (Bytes at = offset; at < extent->end(); at += kPage) {
        const int page = static_cast<int>(at / kPage);
        ASSERT_EQ(backed[page]++, 0);
        ASSERT_TRUE(pages_[page] > 0 || pages_[page] == kStranded) << page;
        lives = lives || pages_[page] > 0;
      }
      ASSERT_TRUE(lives);
    }
    std::vector<int> owners(kPages, 0);
    for (const auto& [offset, segment] : arena_.segments()) {
      const bool resident = segment->state() == SegmentState::kResident;
      for (Bytes at = offset; at < segment->end(); at += kPage) {
        const int page = static_cast<int>(at / kPage);
        owners[page] = static_cast<int>(segment->id().value());
        ASSERT_EQ(backed[page], resident ? 1 : 0) << page;
      }
    }
    int stranded = 0;
    for (int page = 0; page < kPages; ++page) {
      ASSERT_EQ(owners[page], std::max(pages_[page], 0)) << page;
      stranded += pages_[page] == kStranded ? 1 : 0;
    }
    ASSERT_EQ(arena_.stranded(), Pages(stranded));
  }
  void Fill(Bytes offset, Bytes size, int with) {
    std::fill_n(pages_.begin() + offset / kPage, size / kPage, with);
  }
  // The longest run of pages that nobody has.
  int LongestFree() const {
    int longest = 0;
    int run = 0;
    for (const int page : pages_) longest = std::max(longest, run = page == kFree ? run + 1 : 0);
    return longest;
  }

  std::vector<int> pages_ = std::vector<int>(kPages, kFree);
};

TEST_P(ArenaModelTest, KeepsTrueBooks) {
  std::mt19937 random(GetParam());
  std::vector<ExtentPtr> leaving;
  for (int step = 0; step < 3000; ++step) {
    const auto action = random() % 20;
    if (action < 9) {
      const int size = 1 + static_cast<int>(random() % 8);
      const auto place = arena_.Take(Pages(size));
      if (!place.ok()) {
        ASSERT_LT(LongestFree(), size);
        continue;
      }
      for (int i = 0; i < size; ++i) {
        const int before = pages_[place->offset / kPage + i];
        ASSERT_EQ(before, place->mapped ? int{kStranded} : int{kFree}) << step;
      }
      const uint64_t id = ++last_segment_;
      Segment& segment = arena_.Add(std::make_unique<Segment>(SegmentId(id), WorkerId(1), "weights",
                                                              place->offset, Pages(size)));
      Fill(place->offset, Pages(size), static_cast<int>(id));
      if (!place->mapped) arena_.AddExtents(Create({{place->offset, Pages(size)}}));
      segment.Move(SegmentState::kResident);
    } else if (action < 16 && !arena_.segments().empty()) {
      auto it = arena_.segments().begin();
      std::advance(it, random() % arena_.segments().size());
      const Segment& segment = *it->second;
      const Bytes offset = segment.offset();
      const Bytes size = segment.size();
      Fill(offset, size, segment.state() == SegmentState::kResident ? kStranded : kFree);
      for (ExtentPtr& extent : arena_.Drop(segment.id())) {
        Fill(extent->offset(), extent->size(), kLeaving);
        leaving.push_back(std::move(extent));
      }
    } else if (action < 18) {
      while (!leaving.empty() && random() % 4 != 0) {
        Fill(leaving.back()->offset(), leaving.back()->size(), kFree);
        arena_.Reclaim({leaving.back()});
        leaving.pop_back();
      }
    } else if (action == 18) {
      Sleep();
      std::replace(pages_.begin(), pages_.end(), int{kStranded}, int{kFree});
    } else {
      Wake();
    }
    Check();
    ASSERT_FALSE(HasFatalFailure()) << step;
  }
  // All back, in one piece.
  arena_.Reclaim(leaving);
  while (!arena_.segments().empty()) {
    arena_.Reclaim(arena_.Drop(arena_.segments().begin()->second->id()));
  }
  leaving.clear();
  EXPECT_EQ(arena_.stranded(), Bytes(0));
  EXPECT_THAT(arena_.Take(Pages(kPages)), IsOk());
  EXPECT_EQ(Free(), kTotal);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ArenaModelTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace torpor
