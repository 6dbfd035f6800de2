// What a daemon tells the event log of what happens to its workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

using Change = OperationEvent::Change;
using State = SegmentsEvent::State;
using testing::ElementsAre;
using testing::IsEmpty;

class EventsTest : public CoreFixture {
 protected:
  // Those since the last call.
  template <typename Body>
  std::vector<Body> Take() {
    std::vector<Body> bodies;
    for (const auto& event : core_->events().Read(position_[typeid(Body).name()], 1 << 20).events) {
      position_[typeid(Body).name()] = event->sequence;
      if (const Body* const body = std::get_if<Body>(&event->body)) bodies.push_back(*body);
    }
    return bodies;
  }
  // Waits for `count` more.
  template <typename Body>
  std::vector<Body> Wait(size_t count) {
    std::vector<Body> bodies;
    const std::atomic<bool> stop = false;
    while (bodies.size() < count) {
      core_->events().WaitBehind(position_[typeid(Body).name()], stop);
      for (Body& body : Take<Body>()) bodies.push_back(std::move(body));
    }
    return bodies;
  }
  std::vector<Change> Changes(const std::vector<OperationEvent>& events) {
    std::vector<Change> changes;
    changes.reserve(events.size());
    for (const OperationEvent& event : events) changes.push_back(event.change);
    return changes;
  }

  std::map<std::string, uint64_t> position_;
};

TEST_F(EventsTest, SessionsOpenAndClose) {
  Start();
  auto worker = Connect("model");
  auto opened = Take<SessionEvent>();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_EQ(opened[0].change, SessionEvent::Change::kOpened);
  EXPECT_EQ(opened[0].worker, worker->id);
  EXPECT_EQ(opened[0].worker_name, "model");
  const WorkerId id = worker->id;
  worker.reset();
  const auto closed = Wait<SessionEvent>(1);
  EXPECT_EQ(closed[0].change, SessionEvent::Change::kClosed);
  EXPECT_EQ(closed[0].worker, id);
  EXPECT_EQ(closed[0].worker_name, "model");
  EXPECT_FALSE(closed[0].why.ok());
}

TEST_F(EventsTest, ASleepAndAWake) {
  Start();
  const auto worker = Connect("model");
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_THAT(worker->Allocate("weights", MiB(1), i), IsOk());
  ASSERT_THAT(worker->Allocate("kv_cache", MiB(2), 4), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());

  const auto slept = Take<OperationEvent>();
  ASSERT_THAT(Changes(slept), ElementsAre(Change::kStarted, Change::kCommitted, Change::kEnded));
  for (const OperationEvent& event : slept) {
    EXPECT_EQ(event.kind, OperationKind::kSleep);
    EXPECT_EQ(event.operation, slept[0].operation);
    EXPECT_EQ(event.worker, worker->id);
    EXPECT_EQ(event.worker_name, "model");
    EXPECT_THAT(event.status, IsOk());
    EXPECT_EQ(event.segments, 4);
    EXPECT_EQ(event.device, MiB(5));
    EXPECT_EQ(event.copied, MiB(3));
    EXPECT_EQ(event.discarded, MiB(2));
  }
  auto moved = Take<SegmentsEvent>();
  ASSERT_EQ(moved.size(), 2U);
  EXPECT_EQ(moved[0].tag, "kv_cache");
  EXPECT_EQ(moved[0].to, State::kDiscarded);
  EXPECT_EQ(moved[0].segments, 1);
  EXPECT_EQ(moved[1].tag, "weights");
  EXPECT_EQ(moved[1].from, State::kResident);
  EXPECT_EQ(moved[1].to, State::kOffloaded);
  EXPECT_EQ(moved[1].segments, 3);
  EXPECT_EQ(moved[1].size, MiB(3));
  EXPECT_EQ(moved[1].operation, slept[0].operation);

  ASSERT_THAT(Wake(All()), IsOk());
  const auto woken = Take<OperationEvent>();
  ASSERT_THAT(Changes(woken), ElementsAre(Change::kStarted, Change::kCommitted, Change::kEnded));
  EXPECT_EQ(woken[2].kind, OperationKind::kWakeUp);
  EXPECT_EQ(woken[2].device, MiB(5));
  moved = Take<SegmentsEvent>();
  ASSERT_EQ(moved.size(), 2U);
  EXPECT_EQ(moved[0].from, State::kDiscarded);
  EXPECT_EQ(moved[1].from, State::kOffloaded);
  EXPECT_EQ(moved[1].to, State::kResident);
}

TEST_F(EventsTest, NothingToDoIsNoEvent) {
  Start();
  const auto worker = Connect("model");
  ASSERT_THAT(worker->Allocate("weights", MiB(1), 1), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  Take<OperationEvent>();
  Take<ProgressEvent>();
  ASSERT_THAT(Sleep(All()), IsOk());
  EXPECT_THAT(Take<OperationEvent>(), IsEmpty());
  EXPECT_THAT(Take<ProgressEvent>(), IsEmpty());
}

TEST_F(EventsTest, ProgressGrowsAndEndsAtTheTotal) {
  Start();
  const auto worker = Connect("model");
  ASSERT_THAT(worker->Allocate("weights", MiB(24), 1), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  auto progress = Take<ProgressEvent>();
  ASSERT_GE(progress.size(), 3U);
  EXPECT_EQ(progress.front().phase, ProgressEvent::Phase::kQuiesce);
  EXPECT_EQ(progress.front().done, Bytes(0));
  Bytes done{};
  for (const ProgressEvent& event : progress) {
    EXPECT_EQ(event.total, MiB(24));
    EXPECT_GE(event.done, done);
    done = event.done;
  }
  EXPECT_EQ(done, MiB(24));
  ASSERT_THAT(Wake(All()), IsOk());
  progress = Take<ProgressEvent>();
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back().kind, OperationKind::kWakeUp);
  EXPECT_EQ(progress.back().done, MiB(24));
  EXPECT_EQ(progress.back().total, MiB(24));
}

TEST_F(EventsTest, AFailedSleepIsRolledBackAndEnds) {
  Start();
  const auto worker = Connect("model");
  ASSERT_THAT(worker->Allocate("weights", MiB(1), 1), IsOk());
  driver_->FailNth(CallKind::kCopyToHost, 1, Internal("CUDA_ERROR_UNKNOWN", "out of luck"));
  ASSERT_THAT(Sleep(All()), HasReason("CUDA_ERROR_UNKNOWN"));
  WaitForRest();
  std::vector<OperationEvent> events = Wait<OperationEvent>(3);
  // The roll back may take longer than the caller waits for it.
  const bool pending = events[1].change == Change::kEnded;
  EXPECT_EQ(events[0].change, Change::kStarted);
  EXPECT_EQ(events[pending ? 2 : 1].change, Change::kRolledBack);
  const OperationEvent& ended = events[pending ? 1 : 2];
  EXPECT_EQ(ended.change, Change::kEnded);
  EXPECT_EQ(ended.rollback_pending, pending);
  EXPECT_EQ(ended.status.reason(), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(events[1].operation, events[0].operation);
  EXPECT_EQ(events[2].operation, events[0].operation);
  EXPECT_THAT(Take<SegmentsEvent>(), IsEmpty());
}

TEST_F(EventsTest, ARefusedSleepEndsWithoutRollBack) {
  Start();
  const auto worker = Connect("model", wire::Quiesce::kNone);
  ASSERT_THAT(worker->Allocate("weights", MiB(1), 1), IsOk());
  ASSERT_THAT(Sleep(All()), HasReason("WORKER_NOT_QUIESCIBLE"));
  const auto events = Take<OperationEvent>();
  ASSERT_THAT(Changes(events), ElementsAre(Change::kStarted, Change::kEnded));
  EXPECT_EQ(events[1].status.reason(), "WORKER_NOT_QUIESCIBLE");
}

}  // namespace
}  // namespace torpor
