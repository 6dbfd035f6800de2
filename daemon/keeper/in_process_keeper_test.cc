#include "daemon/keeper/in_process_keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

constexpr WorkerId kWorker(1);
constexpr WorkerId kOther(2);

// A pipe: its reading end sees the end of the stream once nobody holds the writing end.
class InProcessKeeperTest : public ::testing::Test {
 protected:
  InProcessKeeperTest() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    reading_.Reset(fds[0]);
    writing_.Reset(fds[1]);
    EXPECT_THAT(keeper_.Record({SessionOpened{kWorker, "w", "s"}, SessionOpened{kOther, "o", "s"}}),
                IsOk());
  }
  static ExtentHeld Extent(uint64_t id) {
    return {ExtentId(id), kWorker, "weights", MiB(0), MiB(2)};
  }
  Status Hold(uint64_t id) { return keeper_.HoldExtent(Extent(id), writing_.get()); }
  bool WriterIsGone() {
    char byte = 0;
    return ::read(reading_.get(), &byte, 1) == 0;
  }
  static SegmentRecorded Segment(uint64_t id, WorkerId worker, JournalState state) {
    return {SegmentId(id), worker, "weights", MiB(0), MiB(2), state};
  }

  UniqueFd reading_;
  UniqueFd writing_;
  InProcessKeeper keeper_;
};

TEST_F(InProcessKeeperTest, HoldsADuplicateUntilItIsDropped) {
  ASSERT_THAT(Hold(1), IsOk());
  EXPECT_EQ(keeper_.extents(), 1u);
  writing_.Reset();
  EXPECT_FALSE(WriterIsGone());
  ASSERT_THAT(keeper_.DropExtent(ExtentId(1)), IsOk());
  EXPECT_TRUE(WriterIsGone());
  EXPECT_EQ(keeper_.extents(), 0u);
}

TEST_F(InProcessKeeperTest, PassesOverUnknownExtents) {
  EXPECT_THAT(keeper_.DropExtent(ExtentId(9)), IsOk());
  ASSERT_THAT(Hold(1), IsOk());
  EXPECT_THAT(keeper_.DropExtent(ExtentId(1)), IsOk());
  EXPECT_THAT(keeper_.DropExtent(ExtentId(1)), IsOk());
}

TEST_F(InProcessKeeperTest, ABadDescriptorIsRefused) {
  EXPECT_FALSE(keeper_.HoldExtent(Extent(1), -1).ok());
  EXPECT_EQ(keeper_.extents(), 0u);
}

TEST_F(InProcessKeeperTest, TheLastRecordOfASegmentCounts) {
  ASSERT_THAT(keeper_.Record({Segment(1, kWorker, JournalState::kResident)}), IsOk());
  ASSERT_THAT(keeper_.Record({Segment(2, kWorker, JournalState::kResident)}), IsOk());
  ASSERT_THAT(keeper_.Record({Segment(1, kWorker, JournalState::kOffloaded)}), IsOk());
  ASSERT_EQ(keeper_.segments().size(), 2u);
  EXPECT_EQ(keeper_.segments()[0].segment, SegmentId(1));
  EXPECT_EQ(keeper_.segments()[0].state, JournalState::kOffloaded);
  ASSERT_THAT(keeper_.Record({SegmentFreed{SegmentId(1)}}), IsOk());
  ASSERT_EQ(keeper_.segments().size(), 1u);
  EXPECT_EQ(keeper_.segments()[0].segment, SegmentId(2));
}

TEST_F(InProcessKeeperTest, ASessionTakesItsSegmentsWithIt) {
  ASSERT_THAT(Hold(1), IsOk());
  ASSERT_THAT(keeper_.Record({Segment(1, kWorker, JournalState::kResident)}), IsOk());
  ASSERT_THAT(keeper_.Record({Segment(2, kOther, JournalState::kResident)}), IsOk());
  ASSERT_THAT(keeper_.Record({SessionClosed{kWorker}}), IsOk());
  ASSERT_EQ(keeper_.segments().size(), 1u);
  EXPECT_EQ(keeper_.segments()[0].worker, kOther);
  writing_.Reset();
  EXPECT_TRUE(WriterIsGone());
  EXPECT_THAT(keeper_.HoldExtent(Extent(2), reading_.get()), HasReason("UNKNOWN_WORKER"));
  EXPECT_EQ(keeper_.extents(), 0u);
}

TEST_F(InProcessKeeperTest, HoldsOnePool) {
  ASSERT_THAT(keeper_.HoldPool({1, "memfd", GiB(1), MiB(64)}, writing_.get()), IsOk());
  writing_.Reset();
  EXPECT_FALSE(WriterIsGone());
  ASSERT_THAT(keeper_.HoldPool({1, "memfd", GiB(1), MiB(64)}, reading_.get()), IsOk());
  EXPECT_TRUE(WriterIsGone());
}

TEST_F(InProcessKeeperTest, TakesRecordsOfReservations) {
  EXPECT_THAT(keeper_.Record({ReservationMade{"r-1", "job", MiB(2), MiB(0)}}), IsOk());
  EXPECT_THAT(keeper_.Record({ReservationReleased{"r-1"}}), IsOk());
  EXPECT_THAT(keeper_.Record({ReservationReleased{"r-1"}}), IsOk());
}

TEST_F(InProcessKeeperTest, IsThreadSafe) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        const uint64_t id = t * 1000 + i;
        EXPECT_THAT(Hold(id), IsOk());
        EXPECT_THAT(keeper_.Record({Segment(id, kWorker, JournalState::kResident)}), IsOk());
        EXPECT_THAT(keeper_.Record({SegmentFreed{SegmentId(id)}}), IsOk());
        EXPECT_THAT(keeper_.DropExtent(ExtentId(id)), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(keeper_.extents(), 0u);
  EXPECT_TRUE(keeper_.segments().empty());
}

}  // namespace
}  // namespace torpor
