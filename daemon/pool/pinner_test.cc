#include "daemon/pool/pinner.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/pool/host_pool.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

constexpr Bytes kSlab = MiB(2);
constexpr size_t kSlabs = 8;
constexpr Duration kNever = std::chrono::hours(10);

class PinnerTest : public ::testing::Test {
 protected:
  static Pinner::Options Threads(int threads) {
    Pinner::Options options;
    options.threads = threads;
    return options;
  }
  // Fails the test if it does not come true.
  static void Eventually(const std::function<bool()>& condition) {
    const TimePoint deadline = std::chrono::steady_clock::now() + seconds(60);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  bool WaitUntilStopped() {
    return driver_.WaitUntilStopped(std::chrono::steady_clock::now() + seconds(60));
  }
  bool InMemory(size_t slab) {
    std::vector<unsigned char> pages(kSlab.size() / static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
    ::mincore(memory_->data(slab), kSlab.size(), pages.data());
    return pages.front() & 1;
  }

  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"pinner", MiB(64), MiB(2)});
  FaultDriver driver_{*host_};
  std::unique_ptr<PoolMemory> memory_ =
      *PoolMemory::Reserve(PoolMemoryKind::kAnonymous, kSlab* kSlabs, kSlab);
};

TEST_F(PinnerTest, DoesNothingUnasked) {
  Pinner pinner(driver_, *memory_, {});
  EXPECT_EQ(pinner.stats().pinned, Bytes(0));
  EXPECT_FALSE(pinner.stats().pinning);
  EXPECT_FALSE(InMemory(0));
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 0);
}

TEST_F(PinnerTest, PinsWhatIsAwaitedAndNoMore) {
  for (const int threads : {1, 3, 16}) {
    Pinner pinner(driver_, *memory_, Threads(threads));
    EXPECT_THAT(pinner.Await(5, nullptr), IsOk());
    EXPECT_TRUE(pinner.IsPinned(5));
    EXPECT_THAT(pinner.Await(5, nullptr), IsOk());
    EXPECT_EQ(pinner.stats().pinned, kSlab);
    EXPECT_EQ(pinner.stats().demanded, Bytes(0));
    EXPECT_FALSE(pinner.stats().pinning);
    EXPECT_FALSE(InMemory(4));
  }
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 3);
  EXPECT_EQ(driver_.Calls(CallKind::kUnregisterHost), 3);
}

TEST_F(PinnerTest, DemandsAreMetInTheirOrder) {
  Pinner pinner(driver_, *memory_, Threads(2));
  driver_.StopAt(CallKind::kRegisterHost, 1);
  pinner.Demand({6, 1, 7, 2, 1, 0, 3, 4, 5});
  ASSERT_TRUE(WaitUntilStopped());
  EXPECT_EQ(pinner.stats().demanded, kSlab * kSlabs);
  EXPECT_TRUE(pinner.stats().pinning);
  Pinner::Order order;
  pinner.Refresh(order);
  EXPECT_EQ(order.slabs, (std::vector<size_t>{6, 1, 7, 2, 0, 3, 4, 5}));
  EXPECT_EQ(order.sound, kSlabs);
  driver_.Continue();
  for (const size_t slab : {6, 1, 7, 2, 0, 3, 4, 5}) {
    EXPECT_THAT(pinner.Await(slab, nullptr), IsOk());
  }
  pinner.Refresh(order);
  EXPECT_EQ(order.slabs, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(PinnerTest, PopulatesAheadButNotEverything) {
  Pinner pinner(driver_, *memory_, Threads(4));
  driver_.StopAt(CallKind::kRegisterHost, 1);
  pinner.Demand({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(WaitUntilStopped());
  Eventually([&] { return InMemory(3); });
  EXPECT_FALSE(InMemory(4));
  driver_.Continue();
  EXPECT_THAT(pinner.Await(7, nullptr), IsOk());
}

// One registration for each slab, which is never larger than 256 MiB, a rest after each of them,
// and none for whoever asks.
TEST_F(PinnerTest, pinning_does_not_stall_the_node) {
  EXPECT_LE(HostPool::kSlab, MiB(256));
  Pinner::Options options;
  EXPECT_GE(options.pause, milliseconds(1));
  options.pause = kNever;
  Pinner pinner(driver_, *memory_, std::move(options));
  pinner.StartBackground();
  Eventually([&] { return pinner.stats().pinned == kSlab && InMemory(1); });
  EXPECT_TRUE(pinner.stats().pinning);
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 1);
  // A demand passes what the background has begun.
  EXPECT_THAT(pinner.Await(6, nullptr), IsOk());
  EXPECT_EQ(pinner.stats().pinned, kSlab * 2);
  EXPECT_THAT(pinner.Await(1, nullptr), IsOk());
  pinner.Demand({2, 3, 4, 5, 7});
  for (size_t slab = 0; slab < kSlabs; ++slab) EXPECT_THAT(pinner.Await(slab, nullptr), IsOk());
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), static_cast<int64_t>(kSlabs));
  EXPECT_FALSE(pinner.stats().pinning);
  // Slab by slab: the driver knows each by its beginning, and nothing else.
  for (size_t slab = 0; slab < kSlabs; ++slab) {
    EXPECT_THAT(host_->UnregisterHost(memory_->data(slab)), IsOk());
    EXPECT_THAT(host_->RegisterHost(memory_->data(slab), memory_->size(slab)), IsOk());
  }
}

TEST_F(PinnerTest, TheBackgroundPinsAll) {
  Pinner pinner(driver_, *memory_, {});
  pinner.StartBackground();
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
  EXPECT_FALSE(pinner.stats().pinning);
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), static_cast<int64_t>(kSlabs));
}

TEST_F(PinnerTest, TheBackgroundYieldsButGoesOn) {
  Pinner::Options options = Threads(2);
  options.yield = kNever;
  options.most_yield = kNever;
  {
    Pinner pinner(driver_, *memory_, options);
    pinner.Yield();
    pinner.StartBackground();
    EXPECT_THAT(pinner.Await(3, nullptr), IsOk());  // what is demanded does not wait
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(pinner.stats().pinned, kSlab);
  }
  options.most_yield = milliseconds(1);
  Pinner pinner(driver_, *memory_, options);
  pinner.Yield();
  pinner.StartBackground();
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
}

TEST_F(PinnerTest, ARefusalIsTheErrorOfThoseThatWait) {
  Pinner pinner(driver_, *memory_, {});
  driver_.StopAt(CallKind::kRegisterHost, 1);
  driver_.FailNth(CallKind::kRegisterHost, 1, ResourceExhausted("HOST_MEMORY_NOT_PINNED", "x"));
  constexpr int kWaiters = 2;
  std::vector<Status> results(kWaiters);
  std::vector<std::atomic<int>> polls(kWaiters);
  std::vector<std::thread> waiters;
  waiters.reserve(kWaiters);
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      results[i] = pinner.Await(3, [&, i] {
        ++polls[i];
        return Status::Ok();
      });
    });
  }
  ASSERT_TRUE(WaitUntilStopped());
  Eventually([&] { return polls[0] > 0 && polls[1] > 0; });
  driver_.Continue();
  for (std::thread& waiter : waiters) waiter.join();
  for (const Status& result : results) EXPECT_THAT(result, HasReason("HOST_MEMORY_NOT_PINNED"));
  EXPECT_FALSE(InMemory(3));  // given back
  EXPECT_EQ(pinner.stats().refused, kSlab);
  EXPECT_THAT(pinner.stats().last_error, HasReason("HOST_MEMORY_NOT_PINNED"));
  EXPECT_EQ(pinner.stats().demanded, Bytes(0));
  Pinner::Order order;
  pinner.Refresh(order);
  EXPECT_EQ(order.sound, kSlabs - 1);
  EXPECT_EQ(order.slabs.back(), 3u);
  // A later demand tries again.
  EXPECT_THAT(pinner.Await(3, nullptr), IsOk());
  EXPECT_EQ(pinner.stats().refused, Bytes(0));
  EXPECT_THAT(pinner.stats().last_error, IsOk());
}

TEST_F(PinnerTest, ARefusalDropsDemandsThatNobodyWaitsFor) {
  Pinner pinner(driver_, *memory_, Threads(1));
  driver_.StopAt(CallKind::kRegisterHost, 1);
  driver_.FailNth(CallKind::kRegisterHost, 1, Internal("FAULT", "injected"));
  pinner.Demand({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(WaitUntilStopped());
  Status of_six;
  std::atomic<int> polls{0};
  std::thread waiter([&] {
    of_six = pinner.Await(6, [&] {
      ++polls;
      return Status::Ok();
    });
  });
  Eventually([&] { return polls > 0; });
  driver_.Continue();
  waiter.join();
  EXPECT_THAT(of_six, IsOk());
  Eventually([&] { return !pinner.stats().pinning; });
  EXPECT_FALSE(pinner.IsPinned(0));
  EXPECT_FALSE(pinner.IsPinned(7));
}

TEST_F(PinnerTest, TheBackgroundGoesOnAfterADemandThatIsRefused) {
  std::atomic<bool> refuse = false;
  Pinner::Options options;
  options.threads = 2;
  options.pause = milliseconds(100);
  options.retry = milliseconds(20);
  options.available = [&] { return Result<Bytes>(refuse ? Bytes(0) : GiB(1)); };
  Pinner pinner(driver_, *memory_, std::move(options));
  pinner.StartBackground();
  // Then those that come next are populated, and rest.
  Eventually([&] { return pinner.stats().pinned >= kSlab; });
  refuse = true;
  (void)pinner.Await(kSlabs - 1, nullptr);
  refuse = false;
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
}

TEST_F(PinnerTest, TheBackgroundGoesOnAfterASuccess) {
  Pinner::Options options;
  options.retry = kNever;
  Pinner pinner(driver_, *memory_, std::move(options));
  driver_.StopAt(CallKind::kRegisterHost, 1);
  driver_.FailNth(CallKind::kRegisterHost, 1, Internal("FAULT", "injected"));
  pinner.StartBackground();
  ASSERT_TRUE(WaitUntilStopped());
  Eventually([&] { return InMemory(1); });
  driver_.Continue();
  // The second one was begun before the first was refused.
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
  EXPECT_EQ(pinner.stats().refused, Bytes(0));
}

TEST_F(PinnerTest, TheBackgroundTriesAgain) {
  Pinner::Options options;
  options.retry = milliseconds(1);
  for (int i = 1; i <= 5; ++i) {
    driver_.FailNth(CallKind::kRegisterHost, i, Internal("FAULT", "injected"));
  }
  Pinner pinner(driver_, *memory_, std::move(options));
  pinner.StartBackground();
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), static_cast<int64_t>(kSlabs) + 5);
}

TEST_F(PinnerTest, WhatTheSystemRefusesForeverStopsTheBackground) {
  Pinner::Options options;
  options.retry = kNever;
  for (int i = 1; i <= 20; ++i) {
    driver_.FailNth(CallKind::kRegisterHost, i, Internal("FAULT", "injected"));
  }
  Pinner pinner(driver_, *memory_, std::move(options));
  pinner.StartBackground();
  Eventually([&] { return driver_.Calls(CallKind::kRegisterHost) > 0 && !pinner.stats().pinning; });
  EXPECT_LE(driver_.Calls(CallKind::kRegisterHost), 2);
  EXPECT_EQ(pinner.stats().pinned, Bytes(0));
  EXPECT_THAT(pinner.stats().last_error, HasReason("FAULT"));
  // Whoever needs it is not told to wait; and when it works again, it goes on.
  EXPECT_THAT(pinner.Await(7, nullptr), HasReason("FAULT"));
  driver_.ClearFaults();
  EXPECT_THAT(pinner.Await(7, nullptr), IsOk());
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
}

TEST_F(PinnerTest, MemoryThatTheMachineDoesNotHaveIsNotTouched) {
  std::atomic<int64_t> available{KiB(100).value()};
  Pinner::Options options;
  options.retry = kNever;
  options.available = [&] { return Result<Bytes>(Bytes(available)); };
  Pinner pinner(driver_, *memory_, std::move(options));
  pinner.StartBackground();
  const Status refused = pinner.Await(1, nullptr);
  ASSERT_THAT(refused, HasReason("HOST_MEMORY_EXHAUSTED"));
  EXPECT_THAT(refused, HasCode(Code::kResourceExhausted));
  EXPECT_GE(refused.Number("requested_bytes"), kSlab.value());
  EXPECT_EQ(refused.Number("available_bytes"), KiB(100).value());
  for (size_t slab = 0; slab < kSlabs; ++slab) EXPECT_FALSE(InMemory(slab));
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 0);
  available = GiB(1).value();
  EXPECT_THAT(pinner.Await(1, nullptr), IsOk());
}

TEST_F(PinnerTest, AnInterruptEndsTheWait) {
  Pinner pinner(driver_, *memory_, {});
  driver_.StopAt(CallKind::kRegisterHost, 1);
  int polls = 0;
  const Status status = pinner.Await(2, [&] {
    return ++polls < 3 ? Status::Ok() : DeadlineExceeded("DEADLINE_EXCEEDED", "enough");
  });
  EXPECT_THAT(status, HasReason("DEADLINE_EXCEEDED"));
  EXPECT_EQ(polls, 3);
  driver_.Continue();
  EXPECT_THAT(pinner.Await(2, nullptr), IsOk());
}

TEST_F(PinnerTest, ManyDemandersEachGetTheirs) {
  Pinner pinner(driver_, *memory_, {});
  pinner.StartBackground();
  std::vector<std::thread> demanders;
  demanders.reserve(4);
  for (size_t d = 0; d < 4; ++d) {
    demanders.emplace_back([&pinner, d] {
      for (size_t i = 0; i < kSlabs; ++i) {
        const size_t slab = (i * 3 + d) % kSlabs;
        pinner.Demand({(slab + 1) % kSlabs});
        EXPECT_THAT(pinner.Await(slab, nullptr), IsOk());
        EXPECT_TRUE(pinner.IsPinned(slab));
      }
    });
  }
  for (std::thread& demander : demanders) demander.join();
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), static_cast<int64_t>(kSlabs));
}

TEST_F(PinnerTest, OneThreadDoesItAllIfThereAreNoMore) {
  int left = 0;
  Pinner::Options options;
  options.start_thread = [&](std::function<void()> run) {
    if (left-- > 0) return StartThread(std::move(run));
    return Result<std::thread>(ResourceExhausted("THREADS_EXHAUSTED", "none"));
  };
  options.available = [] { return Result<Bytes>(GiB(1)); };
  options.retry = milliseconds(1);
  Pinner pinner(driver_, *memory_, std::move(options));
  EXPECT_THAT(pinner.Await(3, nullptr), HasReason("THREADS_EXHAUSTED"));
  pinner.StartBackground();
  EXPECT_EQ(pinner.stats().pinned, Bytes(0));
  left = 1;
  driver_.FailNth(CallKind::kRegisterHost, 4, Internal("FAULT", "injected"));
  EXPECT_THAT(pinner.Await(5, nullptr), IsOk());
  Eventually([&] { return pinner.stats().pinned == kSlab * kSlabs; });
}

TEST_F(PinnerTest, EndsWhilePinning) {
  for (int round = 0; round < 20; ++round) {
    {
      Pinner pinner(driver_, *memory_, Threads(1 + round % 4));
      if (round % 2 == 0) pinner.StartBackground();
      pinner.Demand({4, 5});
      if (round % 3 == 0) {
        EXPECT_THAT(pinner.Await(4, nullptr), IsOk());
      }
    }
    EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), driver_.Calls(CallKind::kUnregisterHost));
  }
}

}  // namespace
}  // namespace torpor
