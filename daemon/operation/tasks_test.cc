#include "daemon/operation/tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

Result<std::thread> NoThread(const std::function<void()>& /*run*/) {
  return ResourceExhausted("THREADS_EXHAUSTED", "none left");
}

TEST(Tasks, RunOnThreadsOfTheirOwnAndAreWaitedFor) {
  std::atomic<int> ran = 0;
  std::atomic<bool> elsewhere = true;
  {
    Tasks tasks;
    for (int i = 0; i < 50; ++i) {
      ASSERT_THAT(tasks.Run([&, caller = std::this_thread::get_id()] {
        if (std::this_thread::get_id() == caller) elsewhere = false;
        ++ran;
      }),
                  IsOk());
    }
  }
  EXPECT_EQ(ran, 50);
  EXPECT_TRUE(elsewhere);
}

TEST(Tasks, WithoutAThreadAreNeitherRunNorCountedNorKept) {
  Tasks tasks(NoThread);
  bool ran = false;
  const auto held = std::make_shared<int>();
  EXPECT_THAT(tasks.Run([&ran, held] { ran = true; }), HasReason("THREADS_EXHAUSTED"));
  tasks.WaitForAll();
  EXPECT_FALSE(ran);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Tasks, RunAgainWhenThereAreThreads) {
  bool none = true;
  bool ran = false;
  Tasks tasks([&](std::function<void()> run) {
    return none ? NoThread(run) : StartThread(std::move(run));
  });
  EXPECT_THAT(tasks.Run([] {}), HasReason("THREADS_EXHAUSTED"));
  none = false;
  EXPECT_THAT(tasks.Run([&] { ran = true; }), IsOk());
  tasks.WaitForAll();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace torpor
