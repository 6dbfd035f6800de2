#include "lib/base/cancel_token.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

Status Why(const char* reason) { return Status(Code::kCancelled, reason, ""); }

TEST(CancelTokenTest, TheFirstReasonStays) {
  CancelToken token;
  EXPECT_FALSE(token.cancelled());
  EXPECT_THAT(token.status(), IsOk());
  EXPECT_THAT(CheckCancelled(&token), IsOk());
  token.Cancel(Why("FIRST"));
  token.Cancel(Why("SECOND"));
  EXPECT_TRUE(token.cancelled());
  EXPECT_THAT(token.status(), HasReason("FIRST"));
  EXPECT_THAT(CheckCancelled(&token), HasReason("FIRST"));
  EXPECT_THAT(CheckCancelled(nullptr), IsOk());
}

TEST(CancelTokenTest, CallbacksAreCalledOnceAndNotAfterTheirEnd) {
  CancelToken token;
  int kept = 0;
  int ended = 0;
  const CancelToken::Callback first(&token, [&] { ++kept; });
  {
    const CancelToken::Callback second(&token, [&] { ++ended; });
  }
  token.Cancel(Why("TEST"));
  token.Cancel(Why("TEST"));
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(ended, 0);
  const CancelToken::Callback late(&token, [&] { ++ended; });
  EXPECT_EQ(ended, 1);
  const CancelToken::Callback nothing(nullptr, [&] { ++ended; });
  EXPECT_EQ(ended, 1);
}

TEST(CancelTokenTest, ACallbackMayEndItselfAndOthersWaitForIt) {
  CancelToken token;
  std::unique_ptr<CancelToken::Callback> own;
  own = std::make_unique<CancelToken::Callback>(&token, [&] {
    EXPECT_THAT(token.status(), HasReason("TEST"));
    own.reset();
  });
  std::atomic<bool> running = false;
  std::atomic<bool> go_on = false;
  std::atomic<bool> done = false;
  auto waited_for = std::make_unique<CancelToken::Callback>(&token, [&] {
    running = true;
    while (!go_on) std::this_thread::yield();
    done = true;
  });
  std::thread canceller([&] { token.Cancel(Why("TEST")); });
  while (!running) std::this_thread::yield();
  EXPECT_EQ(own, nullptr);
  std::thread helper([&] { go_on = true; });
  waited_for.reset();
  EXPECT_TRUE(done);
  canceller.join();
  helper.join();
}

TEST(CancelTokenTest, WakesAWaiter) {
  CancelToken token;
  Mutex mutex;
  CondVar changed;
  std::thread waiter([&] {
    const CancelToken::Callback wake(&token, [&] {
      MutexLock lock(mutex);
      changed.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!token.cancelled()) changed.Wait(mutex);
  });
  token.Cancel(Why("TEST"));
  waiter.join();
}

TEST(CancelTokenTest, ManyThreadsRegisterWhileItIsCancelled) {
  CancelToken token;
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      constexpr int kRounds = 100;
      for (int round = 0; round < kRounds; ++round) {
        const CancelToken::Callback callback(&token, [&] { ++calls; });
      }
      std::atomic<bool> called = false;
      const CancelToken::Callback last(&token, [&] {
        ++calls;
        called = true;
      });
      while (!called) std::this_thread::yield();
    });
  }
  token.Cancel(Why("TEST"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(calls, 4);
}

}  // namespace
}  // namespace torpor
