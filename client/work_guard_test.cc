#include "client/work_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor::client {
namespace {

constexpr OperationId kFirst(1);
constexpr OperationId kSecond(2);

bool Never() { return false; }
TimePoint Soon() { return Clock::Real().Now() + milliseconds(20); }

// Whether another thread could enter now.
bool OthersMayEnter(WorkGuard& guard, const std::vector<std::string>& tags = {}) {
  bool entered = false;
  std::thread([&] {
    entered = guard.Begin(tags, Soon()).ok();
    if (entered) {
      EXPECT_THAT(guard.End(), IsOk());
    }
  }).join();
  return entered;
}

TEST(WorkGuardTest, IsReentrantAndSharedByThreads) {
  WorkGuard guard;
  EXPECT_THAT(guard.End(), HasReason("WORK_GUARD_NOT_HELD"));
  EXPECT_THAT(guard.Begin({}, Soon()), IsOk());
  EXPECT_THAT(guard.Begin({}, Soon()), IsOk());
  EXPECT_TRUE(guard.HeldByThisThread());
  EXPECT_TRUE(OthersMayEnter(guard));
  EXPECT_THAT(guard.End(), IsOk());
  EXPECT_TRUE(guard.HeldByThisThread());
  EXPECT_THAT(guard.End(), IsOk());
  EXPECT_FALSE(guard.HeldByThisThread());
  EXPECT_THAT(guard.End(), HasReason("WORK_GUARD_NOT_HELD"));
}

TEST(WorkGuardTest, QuietWaitsForThoseInsideOnly) {
  WorkGuard guard;
  ASSERT_THAT(guard.Begin({}, Soon()), IsOk());
  std::atomic<bool> quiet{false};
  std::thread operation([&] {
    EXPECT_THAT(guard.Quiet(kFirst, &Never), IsOk());
    quiet = true;
  });
  while (OthersMayEnter(guard)) continue;
  EXPECT_THAT(guard.Begin({}, Soon()), IsOk());  // nested
  EXPECT_THAT(guard.End(), IsOk());
  EXPECT_FALSE(quiet);
  EXPECT_THAT(guard.End(), IsOk());
  operation.join();
  EXPECT_FALSE(guard.Running());
  EXPECT_THAT(guard.Begin({}, Soon()), HasReason("ASLEEP"));
  guard.Release(kFirst);
  EXPECT_TRUE(guard.Running());
  EXPECT_TRUE(OthersMayEnter(guard));
}

TEST(WorkGuardTest, OperationsShareTheExclusiveSide) {
  WorkGuard guard;
  EXPECT_THAT(guard.Quiet(kFirst, &Never), IsOk());
  EXPECT_THAT(guard.Quiet(kSecond, &Never), IsOk());
  guard.Release(kFirst);
  EXPECT_FALSE(OthersMayEnter(guard));
  guard.Release(kSecond);
  EXPECT_TRUE(OthersMayEnter(guard));
}

TEST(WorkGuardTest, ACancelledWaitLeavesNothing) {
  WorkGuard guard;
  ASSERT_THAT(guard.Begin({}, Soon()), IsOk());
  std::atomic<bool> cancelled{false};
  std::thread operation([&] {
    EXPECT_THAT(guard.Quiet(kFirst, [&] { return cancelled.load(); }),
                HasReason("OPERATION_CANCELLED"));
  });
  while (OthersMayEnter(guard)) continue;
  cancelled = true;
  guard.Interrupt();
  operation.join();
  EXPECT_TRUE(OthersMayEnter(guard));
  EXPECT_THAT(guard.End(), IsOk());
}

TEST(WorkGuardTest, SleepingTagsKeepOutWhoNeedsThem) {
  WorkGuard guard;
  guard.SetAsleep({1, {"kv_cache"}}, 1);
  EXPECT_FALSE(OthersMayEnter(guard));
  EXPECT_FALSE(OthersMayEnter(guard, {"weights", "kv_cache"}));
  EXPECT_TRUE(OthersMayEnter(guard, {"weights"}));
  const Status status = guard.Begin({}, Soon());
  EXPECT_THAT(status, HasCode(Code::kDeadlineExceeded));
  EXPECT_EQ(status.details().at("asleep_tags"), "kv_cache");

  ASSERT_THAT(guard.Begin({"weights"}, Soon()), IsOk());
  EXPECT_THAT(guard.Begin({}, std::nullopt), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(guard.End(), IsOk());
  std::thread waiting([&] {
    EXPECT_THAT(guard.Begin({}, std::nullopt), IsOk());
    EXPECT_THAT(guard.End(), IsOk());
  });
  guard.SetAsleep({2, {}}, 1);
  waiting.join();
}

TEST(WorkGuardTest, OfTwoListsOfSleepersTheLaterCounts) {
  WorkGuard guard;
  guard.SetAsleep({2, {"a"}}, 1);
  guard.SetAsleep({1, {}}, 1);
  EXPECT_FALSE(OthersMayEnter(guard, {"a"}));
  guard.SetAsleep({3, {}}, 1);
  EXPECT_TRUE(OthersMayEnter(guard, {"a"}));
}

TEST(WorkGuardTest, ALaterDaemonCountsAnew) {
  WorkGuard guard;
  guard.SetAsleep({7, {"a"}}, 1);
  guard.SetAsleep({1, {"b"}}, 2);
  EXPECT_TRUE(OthersMayEnter(guard, {"a"}));
  guard.SetAsleep({8, {}}, 1);  // late
  EXPECT_FALSE(OthersMayEnter(guard, {"b"}));
  guard.SetAsleep({0, {}}, 3);  // says nothing
  EXPECT_FALSE(OthersMayEnter(guard, {"b"}));
}

TEST(WorkGuardTest, WhatIsTornStaysAsleepUntilItIsMended) {
  WorkGuard guard;
  guard.SetAsleep({1, {"a"}}, 1);
  EXPECT_THAT(guard.Quiet(kFirst, &Never), IsOk());
  guard.Disconnect({"b"});
  EXPECT_TRUE(OthersMayEnter(guard, {"c"}));
  EXPECT_FALSE(OthersMayEnter(guard, {"a"}));
  guard.SetAsleep({1, {}}, 2);
  EXPECT_TRUE(OthersMayEnter(guard, {"a"}));
  EXPECT_FALSE(OthersMayEnter(guard, {"b"}));
  EXPECT_FALSE(guard.Running());
  guard.Mend();
  EXPECT_TRUE(guard.Running());
  EXPECT_TRUE(OthersMayEnter(guard));
}

TEST(WorkGuardTest, NobodyEntersForTagsWithoutTheirSegments) {
  WorkGuard guard;
  guard.SetAsleep({1, {"a"}}, 1);
  std::thread waiting(
      [&] { EXPECT_THAT(guard.Begin({"a"}, std::nullopt), HasReason("SEGMENTS_LOST")); });
  guard.SetLost({"a"});
  waiting.join();
  EXPECT_TRUE(OthersMayEnter(guard, {"b"}));
  guard.SetLost({});
  guard.SetAsleep({2, {}}, 1);
  EXPECT_TRUE(OthersMayEnter(guard));
}

TEST(WorkGuardTest, AbandonEndsOperationsAndAddsSleepers) {
  WorkGuard guard;
  guard.SetAsleep({1, {"a"}}, 1);
  EXPECT_THAT(guard.Quiet(kFirst, &Never), IsOk());
  guard.Abandon({"b"});
  EXPECT_FALSE(OthersMayEnter(guard, {"a"}));
  EXPECT_FALSE(OthersMayEnter(guard, {"b"}));
  EXPECT_TRUE(OthersMayEnter(guard, {"c"}));
}

TEST(WorkGuardTest, NobodyWaitsForTagsThatAreLost) {
  WorkGuard guard;
  guard.SetAsleep({1, {"a"}}, 1);
  std::thread waiting(
      [&] { EXPECT_THAT(guard.Begin({"a"}, std::nullopt), HasReason("DAEMON_GONE")); });
  guard.Abandon({"b"});
  waiting.join();
  const Status status = guard.Begin({}, std::nullopt);
  EXPECT_THAT(status, HasReason("DAEMON_GONE"));
  EXPECT_EQ(status.details().at("asleep_tags"), "a,b");
  EXPECT_THAT(guard.Begin({"c"}, std::nullopt), IsOk());
  EXPECT_THAT(guard.Begin({"b"}, std::nullopt), HasReason("DAEMON_GONE"));
  EXPECT_THAT(guard.End(), IsOk());
}

TEST(WorkGuardTest, DeferredActionsRunOutside) {
  WorkGuard guard;
  EXPECT_FALSE(guard.Defer([] { FAIL(); }));
  ASSERT_THAT(guard.Begin({}, Soon()), IsOk());
  ASSERT_THAT(guard.Begin({}, Soon()), IsOk());
  int ran = 0;
  EXPECT_TRUE(guard.Defer([&] {
    EXPECT_FALSE(guard.HeldByThisThread());
    ++ran;
  }));
  EXPECT_THAT(guard.End(), IsOk());
  EXPECT_EQ(ran, 0);
  EXPECT_THAT(guard.End(), IsOk());
  EXPECT_EQ(ran, 1);
}

TEST(WorkGuardTest, ExcludeTakesAnEmptyGuardOnly) {
  WorkGuard guard;
  ASSERT_TRUE(guard.TryExclude());
  EXPECT_FALSE(OthersMayEnter(guard));
  guard.EndExclude();
  ASSERT_THAT(guard.Begin({}, Soon()), IsOk());
  EXPECT_FALSE(guard.TryExclude());
  EXPECT_THAT(guard.End(), IsOk());
}

}  // namespace
}  // namespace torpor::client
