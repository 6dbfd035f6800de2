#include "daemon/memory/inventory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/memory/memory_fixture.h"
#include "daemon/pool/host_pool.h"
#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

constexpr char kWeights[] = "weights";
constexpr char kCache[] = "kv_cache";

wire::Policy Offload(const std::string&) { return wire::Policy::kOffload; }
wire::Policy Discard(const std::string&) { return wire::Policy::kDiscard; }
bool Every(const std::string&) { return true; }
Inventory::TagFilter Only(const std::string& tag) {
  return [tag](const std::string& other) { return tag == other; };
}

class InventoryTest : public MemoryFixture {
 protected:
  static constexpr int kArenaPages = 64;

  WorkerId AddWorker(const std::string& name = "job") {
    WorkerInfo info;
    info.name = name;
    return inventory_.AddWorker(std::move(info));
  }
  // PENDING, with extents.
  SegmentId Begin(const std::string& tag, int pages) {
    const auto placement = *inventory_.Place(worker_, tag, Pages(pages));
    EXPECT_FALSE(placement.mapped);
    EXPECT_THAT(inventory_.AddExtents(worker_, tag, Create({{placement.offset, placement.size}})),
                IsOk());
    return placement.segment;
  }
  SegmentId Allocate(const std::string& tag, int pages) {
    const SegmentId segment = Begin(tag, pages);
    EXPECT_THAT(inventory_.Publish(worker_, segment), IsOk());
    return segment;
  }
  void GiveImages(Plan& plan) {
    for (PlannedArena& part : plan.arenas) {
      for (PlannedSegment& segment : part.segments) {
        if (segment.to != SegmentState::kOffloaded) continue;
        segment.image = *images_.Create(segment.size, Draw());
      }
    }
  }
  void GiveExtents(Plan& plan) {
    for (PlannedArena& part : plan.arenas) {
      std::vector<RangeSet::Range> ranges;
      for (const PlannedSegment& one : part.segments) ranges.push_back({one.offset, one.size});
      part.extents = Create(ranges);
    }
  }
  std::vector<Orphans> CommitSleep(Plan& plan) {
    inventory_.TakeExtents(worker_, plan);
    for (PlannedArena& part : plan.arenas) part.extents.clear();
    return inventory_.Commit(worker_, plan);
  }
  void Sleep(const Inventory::PolicyOf& policy, const Inventory::TagFilter& tags = Every,
             bool force = false) {
    ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
    Plan plan = inventory_.BeginSleep(worker_, tags, policy, force);
    GiveImages(plan);
    EXPECT_TRUE(CommitSleep(plan).empty());
    inventory_.EndOperation(worker_);
  }
  void Wake(const Inventory::TagFilter& tags = Every) {
    ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
    Plan plan = inventory_.BeginWake(worker_, tags);
    GiveExtents(plan);
    EXPECT_TRUE(inventory_.Commit(worker_, plan).empty());
    inventory_.EndOperation(worker_);
  }
  WorkerStats Stats() {
    for (WorkerStats& stats : inventory_.Snapshot()) {
      if (stats.info.id == worker_) return stats;
    }
    return {};
  }
  TagStats Tag(const std::string& tag) {
    for (const TagStats& stats : Stats().tags) {
      if (stats.tag == tag) return stats;
    }
    return {};
  }

  HostPool pool_{driver_, MiB(16)};
  ImageStore images_{pool_};
  Inventory inventory_{kPage, Pages(kArenaPages), kTotal};
  const WorkerId worker_ = AddWorker();
};

// --- workers

TEST_F(InventoryTest, KnowsItsWorkers) {
  WorkerInfo info;
  info.peer.pid = 42;
  info.reservation = "r-1";
  const WorkerId id = inventory_.AddWorker(info);
  EXPECT_NE(id, worker_);
  EXPECT_EQ(WorkerName(id), "w-2");
  ASSERT_TRUE(inventory_.FindWorker(id).has_value());
  EXPECT_EQ(inventory_.FindWorker(id)->name, "pid-42");
  EXPECT_EQ(inventory_.FindWorker(id)->reservation, "r-1");
  inventory_.UpdateWorker(id, [](WorkerInfo& i) { i.reported_live = MiB(7); });
  EXPECT_EQ(inventory_.FindWorker(id)->reported_live, MiB(7));
  EXPECT_FALSE(inventory_.FindWorker(WorkerId(9)).has_value());
}

TEST_F(InventoryTest, AClosedWorkerIsRefusedEverything) {
  const SegmentId segment = Allocate(kWeights, 2);
  EXPECT_EQ(inventory_.Close(worker_).size(), 1u);
  EXPECT_FALSE(inventory_.FindWorker(worker_).has_value());
  EXPECT_THAT(inventory_.Place(worker_, kWeights, kPage), HasReason("WORKER_GONE"));
  EXPECT_THAT(inventory_.BeginOperation(worker_), HasReason("WORKER_GONE"));
  EXPECT_THAT(inventory_.Publish(worker_, segment), HasReason("WORKER_GONE"));
  EXPECT_THAT(inventory_.Free(worker_, segment), HasReason("WORKER_GONE"));
  EXPECT_TRUE(inventory_.Close(worker_).empty());
  inventory_.Remove(worker_);
  EXPECT_TRUE(inventory_.Snapshot().empty());
  EXPECT_TRUE(inventory_.Close(worker_).empty());
  EXPECT_THAT(inventory_.BeginOperation(worker_), HasCode(Code::kUnavailable));
}

TEST_F(InventoryTest, CloseGivesAllExtentsAlsoThoseOnTheirWayOut) {
  Allocate(kWeights, 2);
  Begin(kCache, 2);  // PENDING
  EXPECT_EQ(inventory_.Free(worker_, Allocate(kWeights, 3))->size(), 1u);
  EXPECT_EQ(inventory_.Close(worker_).size(), 3u);
  inventory_.Remove(worker_);
  EXPECT_EQ(Free(), kTotal);
}

TEST_F(InventoryTest, CloseWaitsForTheOperationUnderWay) {
  Allocate(kWeights, 2);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Discard, false);
  std::atomic<bool> over{false};
  std::thread closer([&] {
    EXPECT_EQ(inventory_.Close(worker_).size(), 1u);
    EXPECT_TRUE(over);
  });
  while (inventory_.FindWorker(worker_).has_value()) std::this_thread::yield();
  EXPECT_TRUE(inventory_.RollBack(worker_, plan).empty());
  over = true;
  inventory_.EndOperation(worker_);
  closer.join();
}

// --- allocation

TEST_F(InventoryTest, BadAllocationsAreRefusedWithTheirReason) {
  const auto place = [this](const std::string& tag, Bytes size) {
    return inventory_.Place(worker_, tag, size);
  };
  EXPECT_THAT(place("no tag", kPage), HasReason("BAD_TAG"));
  EXPECT_THAT(place("", kPage), HasReason("BAD_TAG"));
  EXPECT_THAT(place(kWeights, Bytes(0)), HasReason("BAD_ALLOCATION_SIZE"));
  EXPECT_THAT(place(kWeights, Bytes(-1)), HasReason("BAD_ALLOCATION_SIZE"));
  EXPECT_THAT(place(kWeights, kTotal + Bytes(1)), HasReason("LARGER_THAN_DEVICE"));
  EXPECT_THAT(place(kWeights, Bytes(INT64_MAX)), HasReason("LARGER_THAN_DEVICE"));
  EXPECT_THAT(place(kWeights, Pages(kArenaPages + 1)), HasReason("ARENA_EXHAUSTED"));
  EXPECT_THAT(inventory_.Place(WorkerId(9), kWeights, kPage), HasReason("WORKER_GONE"));
  EXPECT_EQ(Tag(kWeights).segments, 0);
}

TEST_F(InventoryTest, SizesAreRoundedUp) {
  const auto placement = *inventory_.Place(worker_, kWeights, kPage + Bytes(1));
  EXPECT_EQ(placement.size, Pages(2));
  EXPECT_EQ(inventory_.Describe(worker_, placement.segment)->size, Pages(2));
}

TEST_F(InventoryTest, ASegmentIsPendingUntilItIsPublished) {
  const SegmentId segment = Begin(kWeights, 2);
  EXPECT_THAT(inventory_.Free(worker_, segment), HasReason("UNKNOWN_SEGMENT"));
  EXPECT_TRUE(inventory_.BeginSleep(worker_, Every, Offload, false).empty());
  EXPECT_THAT(inventory_.Publish(worker_, segment), IsOk());
  EXPECT_THAT(inventory_.Publish(worker_, segment), IsOk());  // again
  EXPECT_THAT(inventory_.Abandon(worker_, segment), HasReason("UNKNOWN_SEGMENT"));
  EXPECT_EQ(Tag(kWeights).resident, Pages(2));
  EXPECT_THAT(inventory_.Publish(worker_, SegmentId(99)), HasReason("UNKNOWN_SEGMENT"));
}

TEST_F(InventoryTest, AnAbandonedSegmentLeavesNothing) {
  const SegmentId segment = Begin(kWeights, kArenaPages);
  EXPECT_EQ(inventory_.Abandon(worker_, segment)->size(), 1u);
  EXPECT_EQ(Free(), kTotal);
  EXPECT_EQ(Tag(kWeights).segments, 0);
  Allocate(kWeights, kArenaPages);
}

TEST_F(InventoryTest, SegmentsOfOthersAreUnknown) {
  const SegmentId segment = Allocate(kWeights, 2);
  const WorkerId other = AddWorker();
  EXPECT_THAT(inventory_.Free(other, segment), HasReason("UNKNOWN_SEGMENT"));
  EXPECT_THAT(inventory_.Describe(other, segment), HasReason("UNKNOWN_SEGMENT"));
}

TEST_F(InventoryTest, AFreedPartIsReusedWithoutNewMemory) {
  const SegmentId first = Allocate(kWeights, 2);
  Allocate(kWeights, 2);
  Sleep(Offload);
  Wake();
  EXPECT_TRUE(inventory_.Free(worker_, first)->empty());
  EXPECT_EQ(Tag(kWeights).stranded, Pages(2));
  const auto placement = *inventory_.Place(worker_, kWeights, Pages(2));
  EXPECT_TRUE(placement.mapped);
  EXPECT_EQ(Tag(kWeights).resident, Pages(4));
  EXPECT_EQ(Tag(kWeights).stranded, Bytes(0));
}

// --- freeing

TEST_F(InventoryTest, AFreedSegmentWaitsForItsWorker) {
  const SegmentId segment = Allocate(kWeights, kArenaPages);
  ASSERT_EQ(inventory_.Free(worker_, segment)->size(), 1u);
  EXPECT_THAT(inventory_.Free(worker_, segment), HasReason("UNKNOWN_SEGMENT"));
  EXPECT_EQ(Free(), kTotal - Pages(kArenaPages));
  EXPECT_THAT(inventory_.Place(worker_, kWeights, kPage), HasReason("ARENA_EXHAUSTED"));
  EXPECT_EQ(inventory_.Freed(worker_, segment).size(), 1u);
  EXPECT_TRUE(inventory_.Freed(worker_, segment).empty());
  EXPECT_EQ(Free(), kTotal);
  EXPECT_THAT(inventory_.Place(worker_, kWeights, Pages(kArenaPages)), IsOk());
}

TEST_F(InventoryTest, ASleepingSegmentIsFreedAtOnceWithItsImage) {
  const SegmentId offloaded = Allocate(kWeights, 2);
  const SegmentId discarded = Allocate(kCache, 2);
  Sleep(Offload, Only(kWeights));
  Sleep(Discard, Only(kCache));
  EXPECT_GT(pool_.stats().used, Bytes(0));
  EXPECT_TRUE(inventory_.Free(worker_, offloaded)->empty());
  EXPECT_TRUE(inventory_.Free(worker_, discarded)->empty());
  EXPECT_EQ(pool_.stats().used, Bytes(0));
  EXPECT_TRUE(inventory_.AsleepTags(worker_).tags.empty());
}

TEST_F(InventoryTest, FreedDuringASleepGoesWithItsCommit) {
  const SegmentId segment = Allocate(kWeights, 2);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Offload, false);
  GiveImages(plan);
  EXPECT_TRUE(inventory_.Free(worker_, segment)->empty());
  EXPECT_THAT(inventory_.Free(worker_, segment), HasReason("UNKNOWN_SEGMENT"));
  EXPECT_EQ(Tag(kWeights).segments, 1);
  const auto freed = CommitSleep(plan);
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].segments, std::vector<SegmentId>{segment});
  EXPECT_TRUE(freed[0].extents.empty());  // the worker has unmapped it already
  plan = Plan();
  EXPECT_EQ(Tag(kWeights).segments, 0);
  EXPECT_EQ(pool_.stats().used, Bytes(0));
  EXPECT_EQ(Free(), kTotal);
  EXPECT_THAT(inventory_.Place(worker_, kWeights, Pages(kArenaPages)), IsOk());
}

TEST_F(InventoryTest, FreedDuringASleepThatIsRolledBackLeavesOrphans) {
  const SegmentId segment = Allocate(kWeights, kArenaPages);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Offload, false);
  EXPECT_TRUE(inventory_.Free(worker_, segment)->empty());
  const auto orphans = inventory_.RollBack(worker_, plan);
  ASSERT_EQ(orphans.size(), 1u);
  EXPECT_EQ(orphans[0].tag, kWeights);
  EXPECT_EQ(orphans[0].extents.size(), 1u);
  EXPECT_THAT(inventory_.Place(worker_, kWeights, kPage), HasReason("ARENA_EXHAUSTED"));
  inventory_.Reclaim(worker_, orphans[0]);
  EXPECT_THAT(inventory_.Place(worker_, kWeights, Pages(kArenaPages)), IsOk());
}

TEST_F(InventoryTest, FreedDuringAWakeLeavesOrphansOrGoesAsleep) {
  for (const bool commit : {true, false}) {
    const SegmentId segment = Allocate(kWeights, 2);
    Sleep(Offload);
    ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
    Plan plan = inventory_.BeginWake(worker_, Every);
    GiveExtents(plan);
    EXPECT_TRUE(inventory_.Free(worker_, segment)->empty());
    const auto orphans =
        commit ? inventory_.Commit(worker_, plan) : inventory_.RollBack(worker_, plan);
    inventory_.EndOperation(worker_);
    ASSERT_EQ(orphans.size(), 1u);
    EXPECT_EQ(orphans[0].segments, std::vector<SegmentId>{segment});
    EXPECT_EQ(orphans[0].extents.size(), commit ? 1u : 0u);
    for (const Orphans& of_tag : orphans) inventory_.Reclaim(worker_, of_tag);
    EXPECT_EQ(Tag(kWeights).segments, 0);
    EXPECT_EQ(Tag(kWeights).extents, 0);
    plan = Plan();
    EXPECT_EQ(pool_.stats().used, Bytes(0));
  }
}

// --- operations

TEST_F(InventoryTest, AWorkerHasOneOperationAtATime) {
  const OperationId operation = *inventory_.BeginOperation(worker_);
  const auto refused = inventory_.BeginOperation(worker_);
  ASSERT_THAT(refused, HasReason("OPERATION_IN_PROGRESS"));
  EXPECT_THAT(refused, HasCode(Code::kAborted));
  EXPECT_EQ(refused.status().details().at("operation"), OperationName(operation));
  EXPECT_THAT(inventory_.BeginOperation(AddWorker()), IsOk());
  EXPECT_EQ(Stats().operation, operation);
  inventory_.EndOperation(worker_);
  EXPECT_THAT(inventory_.BeginOperation(worker_), IsOk());
}

TEST_F(InventoryTest, TellsTheOperationThatIsMostOverdue) {
  const TimePoint now = TimePoint() + seconds(1000);
  const WorkerId other = AddWorker("other");
  const WorkerId endless = AddWorker();
  ASSERT_THAT(inventory_.BeginOperation(worker_, now - seconds(1)), IsOk());
  const auto oldest = inventory_.BeginOperation(other, now - seconds(2));
  ASSERT_THAT(oldest, IsOk());
  ASSERT_THAT(inventory_.BeginOperation(endless), IsOk());
  EXPECT_FALSE(inventory_.MostOverdue(now - seconds(3)).has_value());
  const auto overdue = inventory_.MostOverdue(now);
  ASSERT_TRUE(overdue.has_value());
  EXPECT_EQ(overdue->worker, other);
  EXPECT_EQ(overdue->worker_name, "other");
  EXPECT_EQ(overdue->operation, *oldest);
  EXPECT_EQ(overdue->deadline, now - seconds(2));
  inventory_.EndOperation(other);
  EXPECT_EQ(inventory_.MostOverdue(now)->worker, worker_);
  inventory_.EndOperation(worker_);
  EXPECT_FALSE(inventory_.MostOverdue(now).has_value());
  // The deadline is that of the operation that is under way.
  ASSERT_THAT(inventory_.BeginOperation(worker_, now + seconds(1)), IsOk());
  EXPECT_FALSE(inventory_.MostOverdue(now).has_value());
}

TEST_F(InventoryTest, ASleepMovesWhatItsPoliciesName) {
  Allocate(kWeights, 2);
  Allocate(kWeights, 3);
  Allocate(kCache, 4);
  Allocate("runtime", 1);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  const auto policy = [](const std::string& tag) {
    if (tag == kWeights) return wire::Policy::kOffload;
    return tag == kCache ? wire::Policy::kDiscard : wire::Policy::kKeep;
  };
  Plan plan = inventory_.BeginSleep(worker_, Every, policy, false);
  EXPECT_EQ(plan.segments(), 3);
  EXPECT_EQ(plan.Sum(SegmentState::kResident, SegmentState::kOffloaded), Pages(5));
  EXPECT_EQ(plan.Sum(SegmentState::kResident, SegmentState::kDiscarded), Pages(4));
  EXPECT_EQ(Tag(kWeights).moving, 2);
  EXPECT_EQ(Tag("runtime").moving, 0);
  EXPECT_TRUE(inventory_.AsleepTags(worker_).tags.empty());
  GiveImages(plan);
  CommitSleep(plan);
  inventory_.EndOperation(worker_);
  EXPECT_EQ(Tag(kWeights).offloaded, Pages(5));
  EXPECT_EQ(Tag(kWeights).extents, 0);
  EXPECT_GT(Tag(kWeights).host, Bytes(0));
  EXPECT_EQ(Tag(kCache).discarded, Pages(4));
  EXPECT_EQ(Tag(kCache).host, Bytes(0));
  EXPECT_EQ(Tag("runtime").resident, Pages(1));
  EXPECT_EQ(inventory_.AsleepTags(worker_).tags, (std::vector<std::string>{kCache, kWeights}));
  EXPECT_EQ(Free(), kTotal - Pages(1));
}

TEST_F(InventoryTest, ARolledBackSleepLeavesAllAsItWas) {
  Allocate(kWeights, 2);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Offload, false);
  GiveImages(plan);
  inventory_.SetAttachment(worker_, plan, AttachmentState::kQuiesced);
  EXPECT_TRUE(inventory_.RollBack(worker_, plan).empty());
  inventory_.EndOperation(worker_);
  plan = Plan();
  EXPECT_EQ(Tag(kWeights).resident, Pages(2));
  EXPECT_EQ(Tag(kWeights).extents, 1);
  EXPECT_EQ(Tag(kWeights).moving, 0);
  EXPECT_EQ(pool_.stats().used, Bytes(0));
}

TEST_F(InventoryTest, AWakeMakesNeighboursOneExtentAndKeepsImages) {
  Allocate(kWeights, 2);
  Allocate(kWeights, 3);
  Sleep(Offload);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginWake(worker_, Every);
  EXPECT_EQ(plan.Sum(SegmentState::kOffloaded, SegmentState::kResident), Pages(5));
  for (const PlannedSegment& segment : plan.arenas[0].segments) {
    EXPECT_NE(segment.image, nullptr);
  }
  EXPECT_EQ(inventory_.AsleepTags(worker_).tags, std::vector<std::string>{kWeights});
  GiveExtents(plan);
  EXPECT_TRUE(inventory_.Commit(worker_, plan).empty());
  inventory_.EndOperation(worker_);
  for (const PlannedSegment& segment : plan.arenas[0].segments) images_.Retire(*segment.image);
  EXPECT_EQ(Tag(kWeights).resident, Pages(5));
  EXPECT_EQ(Tag(kWeights).extents, 1);
  EXPECT_EQ(Tag(kWeights).host, Bytes(0));
  EXPECT_EQ(Tag(kWeights).clean, HostPool::kUnit * 2);
  EXPECT_TRUE(inventory_.AsleepTags(worker_).tags.empty());
  // The next sleep finds them.
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan again = inventory_.BeginSleep(worker_, Every, Offload, false);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(again.arenas[0].segments[i].image, plan.arenas[0].segments[i].image);
  }
  EXPECT_TRUE(inventory_.RollBack(worker_, again).empty());
}

TEST_F(InventoryTest, ARolledBackWakeKeepsTheImages) {
  Allocate(kWeights, 2);
  Allocate(kCache, 2);
  Sleep(Offload, Only(kWeights));
  Sleep(Discard, Only(kCache));
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginWake(worker_, Every);
  EXPECT_EQ(plan.Sum(SegmentState::kDiscarded, SegmentState::kResident), Pages(2));
  EXPECT_TRUE(inventory_.RollBack(worker_, plan).empty());
  inventory_.EndOperation(worker_);
  plan = Plan();
  EXPECT_EQ(Tag(kWeights).offloaded, Pages(2));
  EXPECT_GT(Tag(kWeights).host, Bytes(0));
  EXPECT_EQ(Tag(kCache).discarded, Pages(2));
  Wake();
  EXPECT_EQ(Tag(kWeights).resident + Tag(kCache).resident, Pages(4));
}

TEST_F(InventoryTest, SleepingWhatSleepsAndWakingWhatIsAwakeChangesNothing) {
  Allocate(kWeights, 2);
  EXPECT_TRUE(inventory_.BeginWake(worker_, Every).empty());
  Sleep(Offload);
  EXPECT_TRUE(inventory_.BeginSleep(worker_, Every, Offload, false).empty());
  EXPECT_TRUE(inventory_.BeginSleep(worker_, Every, Discard, false).empty());
  EXPECT_TRUE(inventory_.BeginSleep(worker_, Every, Offload, true).empty());
  EXPECT_TRUE(inventory_.BeginSleep(WorkerId(9), Every, Offload, false).empty());
  EXPECT_TRUE(inventory_.BeginWake(WorkerId(9), Every).empty());
}

TEST_F(InventoryTest, AForcedDiscardDropsImagesAtItsCommitOnly) {
  Allocate(kWeights, 2);
  Sleep(Offload);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Discard, true);
  EXPECT_EQ(plan.Sum(SegmentState::kOffloaded, SegmentState::kDiscarded), Pages(2));
  inventory_.SetAttachment(worker_, plan, AttachmentState::kQuiesced);
  EXPECT_TRUE(inventory_.RollBack(worker_, plan).empty());
  EXPECT_EQ(Tag(kWeights).offloaded, Pages(2));
  EXPECT_GT(pool_.stats().used, Bytes(0));
  inventory_.EndOperation(worker_);
  Sleep(Discard, Every, true);
  EXPECT_EQ(Tag(kWeights).discarded, Pages(2));
  EXPECT_EQ(pool_.stats().used, Bytes(0));
}

TEST_F(InventoryTest, FreedBeforeAForcedDiscardItIsPassedOver) {
  const SegmentId segment = Allocate(kWeights, 2);
  Sleep(Offload);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Discard, true);
  EXPECT_THAT(inventory_.Free(worker_, segment), IsOk());
  const auto freed = CommitSleep(plan);
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_TRUE(freed[0].extents.empty());
  EXPECT_EQ(Tag(kWeights).segments, 0);
}

TEST_F(InventoryTest, AnAllocationUnderWayStaysOutOfASleep) {
  Allocate(kWeights, 2);
  const SegmentId pending = Begin(kWeights, 2);
  ASSERT_THAT(inventory_.BeginOperation(worker_), IsOk());
  Plan plan = inventory_.BeginSleep(worker_, Every, Offload, false);
  ASSERT_EQ(plan.arenas.size(), 1u);
  EXPECT_EQ(plan.arenas[0].extents.size(), 1u);
  GiveImages(plan);
  EXPECT_THAT(inventory_.Publish(worker_, pending), IsOk());  // in the middle of it
  CommitSleep(plan);
  inventory_.EndOperation(worker_);
  EXPECT_EQ(Tag(kWeights).resident, Pages(2));
  EXPECT_EQ(Tag(kWeights).offloaded, Pages(2));
  EXPECT_EQ(Tag(kWeights).extents, 1);
  Wake();
  EXPECT_EQ(Tag(kWeights).resident, Pages(4));
  EXPECT_EQ(Tag(kWeights).extents, 2);
}

// --- attachments

TEST_F(InventoryTest, AWorkerThatDoesNotAnswerIsUnknownUntilItIsRolledBack) {
  Allocate(kWeights, 2);
  Allocate(kCache, 2);
  const OperationId operation = *inventory_.BeginOperation(worker_);
  Plan plan = inventory_.BeginSleep(worker_, Only(kWeights), Offload, false);
  inventory_.MarkUnknown(worker_, OperationId(operation.value() + 1));  // of another one
  EXPECT_FALSE(Stats().unknown_attachment);
  EXPECT_THAT(inventory_.BeginOperation(worker_), HasReason("OPERATION_IN_PROGRESS"));
  inventory_.MarkUnknown(worker_, operation);
  EXPECT_TRUE(Stats().unknown_attachment);
  EXPECT_THAT(inventory_.BeginOperation(worker_), HasReason("ROLLBACK_PENDING"));
  EXPECT_TRUE(inventory_.RollBack(worker_, plan).empty());
  EXPECT_FALSE(Stats().unknown_attachment);
  inventory_.EndOperation(worker_);
  inventory_.MarkUnknown(worker_, operation);  // too late
  EXPECT_FALSE(Stats().unknown_attachment);
}

}  // namespace
}  // namespace torpor
