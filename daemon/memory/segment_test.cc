#include "daemon/memory/segment.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace torpor {
namespace {

using S = SegmentState;
constexpr S kAll[] = {S::kPending,   S::kResident,  S::kSleeping,
                      S::kOffloaded, S::kDiscarded, S::kWaking};

std::unique_ptr<Segment> New() {
  return std::make_unique<Segment>(SegmentId(7), WorkerId(1), "weights", MiB(2), MiB(4));
}

// A segment that came to `state` by legal moves.
std::unique_ptr<Segment> In(S state) {
  auto segment = New();
  const auto go = [&](const std::vector<S>& path) {
    for (const S to : path) segment->Move(to);
  };
  switch (state) {
    case S::kPending:
      break;
    case S::kResident:
      go({S::kResident});
      break;
    case S::kSleeping:
      go({S::kResident, S::kSleeping});
      break;
    case S::kOffloaded:
      go({S::kResident, S::kSleeping, S::kOffloaded});
      break;
    case S::kDiscarded:
      go({S::kResident, S::kSleeping, S::kDiscarded});
      break;
    case S::kWaking:
      go({S::kResident, S::kSleeping, S::kOffloaded, S::kWaking});
      break;
  }
  return segment;
}

// To where it may end.
void Rest(Segment& segment) {
  if (!segment.at_rest() && segment.state() != S::kPending) segment.Move(S::kResident);
}

TEST(SegmentTest, BeginsPendingAndUnmapped) {
  const auto segment = New();
  EXPECT_EQ(segment->state(), S::kPending);
  EXPECT_EQ(segment->end(), MiB(6));
  EXPECT_FALSE(segment->at_rest());
  EXPECT_FALSE(segment->doomed());
  EXPECT_EQ(segment->image(), nullptr);
  ASSERT_EQ(segment->attachments().size(), 1u);
  EXPECT_EQ(segment->attachments()[0].worker, WorkerId(1));
  EXPECT_EQ(segment->attachments()[0].state, AttachmentState::kUnmapped);
}

TEST(SegmentTest, AnAttachmentIsSetForItsWorkerOnly) {
  const auto segment = New();
  segment->SetAttachment(WorkerId(2), AttachmentState::kUnknown);
  EXPECT_EQ(segment->attachments()[0].state, AttachmentState::kUnmapped);
  segment->SetAttachment(WorkerId(1), AttachmentState::kMapped);
  EXPECT_EQ(segment->attachments()[0].state, AttachmentState::kMapped);
}

TEST(SegmentTest, MovesAlongTheListedEdgesAndNoOthers) {
  const std::set<std::pair<S, S>> legal = {
      {S::kPending, S::kResident},    {S::kResident, S::kSleeping}, {S::kSleeping, S::kOffloaded},
      {S::kSleeping, S::kDiscarded},  {S::kSleeping, S::kResident}, {S::kOffloaded, S::kWaking},
      {S::kOffloaded, S::kDiscarded}, {S::kDiscarded, S::kWaking},  {S::kWaking, S::kResident},
      {S::kWaking, S::kOffloaded},    {S::kWaking, S::kDiscarded},
  };
  for (const S from : kAll) {
    for (const S to : kAll) {
      const bool is_legal = legal.count({from, to}) != 0;
      EXPECT_EQ(IsLegalMove(from, to), is_legal)
          << SegmentStateName(from) << " -> " << SegmentStateName(to);
      if (!is_legal) continue;
      const auto segment = In(from);
      segment->Move(to);
      EXPECT_EQ(segment->state(), to);
      Rest(*segment);
    }
  }
}

TEST(SegmentDeathTest, AnIllegalMoveEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const S from : kAll) {
    for (const S to : {S::kPending, S::kSleeping, S::kOffloaded}) {
      if (IsLegalMove(from, to)) continue;
      EXPECT_DEATH(In(from).release()->Move(to), "segment 7: illegal move: ");
    }
  }
}

TEST(SegmentDeathTest, EndsInPendingOrAtRestOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const S state : {S::kPending, S::kResident, S::kOffloaded, S::kDiscarded}) In(state).reset();
  EXPECT_DEATH(In(S::kSleeping).reset(), "segment 7: destroyed: SLEEPING");
  EXPECT_DEATH(In(S::kWaking).reset(), "segment 7: destroyed: WAKING");
}

}  // namespace
}  // namespace torpor
