#include "lib/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

#include "lib/base/clock.h"

namespace torpor {
namespace {

TEST(CondVarTest, WakesAWaiterThatThenHoldsTheMutex) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  std::thread other([&] {
    MutexLock lock(mutex);
    ready = true;
    changed.NotifyOne();
  });
  {
    MutexLock lock(mutex);
    while (!ready) changed.Wait(mutex);
    std::thread([&] { EXPECT_FALSE(mutex.TryLock()); }).join();
  }
  other.join();
}

TEST(CondVarTest, WaitUntilGivesUp) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  const TimePoint deadline = Clock::Real().Now() + milliseconds(5);
  while (changed.WaitUntil(mutex, deadline)) {
  }
  EXPECT_GE(Clock::Real().Now(), deadline);
}

TEST(SharedMutexTest, ReadersShare) {
  SharedMutex mutex;
  ReaderLock first(mutex);
  std::thread([&] { ReaderLock second(mutex); }).join();
}

TEST(ManualClockTest, MovesOnlyWhenTold) {
  ManualClock clock;
  const TimePoint start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(seconds(90));
  EXPECT_EQ(clock.Now() - start, seconds(90));
}

}  // namespace
}  // namespace torpor
