#include "daemon/pool/host_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

using Blocks = std::vector<HostPool::Block>;

Bytes Sum(const Blocks& blocks) {
  Bytes sum{};
  for (const HostPool::Block& block : blocks) sum += block.size;
  return sum;
}

class HostPoolTest : public ::testing::Test {
 protected:
  static constexpr Bytes kSmallSlab = MiB(2);
  // A pool of small slabs.
  std::unique_ptr<HostPool> Small(Bytes budget) {
    return std::make_unique<HostPool>(
        driver_, *PoolMemory::Reserve(PoolMemoryKind::kAnonymous, budget, kSmallSlab),
        Pinner::Options());
  }

  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"pool", MiB(64), MiB(2)});
  FaultDriver driver_{*host_};
};

TEST_F(HostPoolTest, ReservesEverythingAndPinsNothing) {
  HostPool pool(driver_, GiB(64));
  const Blocks blocks = *pool.Allocate(GiB(64), MiB(2));
  EXPECT_EQ(blocks.size(), static_cast<size_t>(GiB(64) / HostPool::kSlab));
  EXPECT_EQ(pool.stats().used, GiB(64));
  EXPECT_EQ(pool.stats().pinned, Bytes(0));
  EXPECT_EQ(pool.stats().kind, "anonymous");
  EXPECT_FALSE(pool.stats().pinning);
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 0);
  pool.Free(blocks);
}

TEST_F(HostPoolTest, PinsTheSlabsOfABlockAndUnregistersThemAtItsEnd) {
  {
    const auto pool = Small(MiB(7));
    const Blocks first = *pool->Allocate(KiB(2112), KiB(64));
    for (const HostPool::Block& block : first) {
      EXPECT_THAT(pool->AwaitPinned(block.data, block.size, nullptr), IsOk());
      std::memset(block.data, 1, block.size.size());
    }
    EXPECT_EQ(pool->stats().pinned, MiB(4));  // two slabs of 2 MiB
    const Blocks rest = *pool->Allocate(KiB(5056), KiB(64));
    pool->Demand(rest);
    for (const HostPool::Block& block : rest) {
      EXPECT_THAT(pool->AwaitPinned(block.data, block.size, nullptr), IsOk());
    }
    EXPECT_EQ(pool->stats().pinned, MiB(7));  // the last slab is what the budget leaves
    EXPECT_EQ(pool->stats().demanded, Bytes(0));
    EXPECT_EQ(pool->stats().used, MiB(7));
    pool->Free(first);
    pool->Free(rest);
    EXPECT_EQ(pool->stats().used, Bytes(0));
    EXPECT_EQ(pool->stats().pinned, MiB(7));
  }
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 4);
  EXPECT_EQ(driver_.Calls(CallKind::kUnregisterHost), 4);
}

TEST_F(HostPoolTest, ABudgetOfNothingIsAPoolWithoutRoom) {
  HostPool pool(driver_, Bytes(0));
  EXPECT_THAT(pool.Allocate(Bytes(1), MiB(2)), HasReason("HOST_POOL_EXHAUSTED"));
  pool.StartPinning();
  EXPECT_EQ(pool.stats().budget, Bytes(0));
  EXPECT_FALSE(pool.stats().pinning);
}

TEST_F(HostPoolTest, PrefersWhatIsPinned) {
  const auto pool = Small(MiB(8));
  const Blocks low = *pool->Allocate(MiB(2), KiB(64));
  const Blocks high = *pool->Allocate(MiB(2), KiB(64));
  ASSERT_THAT(pool->AwaitPinned(high[0].data, high[0].size, nullptr), IsOk());
  pool->Free(low);
  pool->Free(high);
  const Blocks again = *pool->Allocate(MiB(3), KiB(64));
  EXPECT_EQ(again[0].data, high[0].data);
  EXPECT_EQ(again[1].data, low[0].data);  // reserved slabs follow in their order
  pool->Free(again);
}

TEST_F(HostPoolTest, WhatTheSystemRefusesIsTheLastToBeUsed) {
  const auto pool = Small(MiB(6));
  driver_.FailNth(CallKind::kRegisterHost, 1, Internal("FAULT", "injected"));
  const Blocks first = *pool->Allocate(MiB(2), KiB(64));
  EXPECT_THAT(pool->AwaitPinned(first[0].data, first[0].size, nullptr), HasReason("FAULT"));
  EXPECT_EQ(pool->stats().pinned, Bytes(0));
  EXPECT_EQ(pool->stats().refused, MiB(2));
  EXPECT_THAT(pool->stats().last_error, HasReason("FAULT"));
  pool->Free(first);
  const Blocks others = *pool->Allocate(MiB(4), KiB(64));
  for (const HostPool::Block& block : others) EXPECT_NE(block.data, first[0].data);
  // Before it come even scattered remains.
  pool->Free({{others[0].data, KiB(64)}, {others[1].data, KiB(64)}});
  const Blocks remains = *pool->Allocate(KiB(128), KiB(128));
  EXPECT_EQ(remains.size(), 2u);
  const Blocks last = *pool->Allocate(MiB(2), KiB(64));
  EXPECT_EQ(last[0].data, first[0].data);
  EXPECT_THAT(pool->AwaitPinned(last[0].data, last[0].size, nullptr), IsOk());
  EXPECT_EQ(pool->stats().refused, Bytes(0));
  EXPECT_THAT(pool->stats().last_error, IsOk());
}

TEST_F(HostPoolTest, RoundsSizesUpAndTheBudgetDown) {
  HostPool pool(driver_, MiB(1) + Bytes(1));
  EXPECT_EQ(pool.stats().budget, MiB(1));
  const Blocks blocks = *pool.Allocate(Bytes(1), MiB(2));
  EXPECT_EQ(Sum(blocks), HostPool::kUnit);
  EXPECT_EQ(pool.stats().used, HostPool::kUnit);
  pool.Free(blocks);
}

TEST_F(HostPoolTest, RefusesWithItsNumbersAndTakesNothing) {
  HostPool pool(driver_, MiB(8));
  const Blocks blocks = *pool.Allocate(MiB(6), MiB(2));
  const auto refused = pool.Allocate(MiB(3), MiB(2));
  ASSERT_THAT(refused, HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_THAT(refused, HasCode(Code::kResourceExhausted));
  EXPECT_EQ(refused.status().Number("requested_bytes"), MiB(3).value());
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(2).value());
  EXPECT_EQ(refused.status().Number("budget_bytes"), MiB(8).value());
  EXPECT_EQ(pool.stats().used, MiB(6));
  pool.Free(blocks);
  EXPECT_THAT(pool.Allocate(MiB(8), MiB(2)), IsOk());
}

// Copies are merged where both ends continue; across two registrations that would be refused.
TEST_F(HostPoolTest, SlabsNeverTouch) {
  HostPool pool(driver_, HostPool::kSlab * 2 + MiB(2));
  const Blocks blocks = *pool.Allocate(pool.stats().budget, MiB(2));
  ASSERT_EQ(blocks.size(), 3u);
  for (const HostPool::Block& one : blocks) {
    for (const HostPool::Block& other : blocks) {
      EXPECT_NE(one.data + one.size.value(), other.data);
    }
  }
  pool.Free(blocks);
}

TEST_F(HostPoolTest, BlocksAreMultiplesOfTheUnitWhileThereIsRoom) {
  HostPool pool(driver_, MiB(512));
  // Leaves the first slab with a hole of 1.5 MiB and 249 MiB after it.
  const Blocks hole = *pool.Allocate(KiB(1536), MiB(2));
  const Blocks wall = *pool.Allocate(KiB(5632), MiB(2));
  pool.Free(hole);
  const Blocks blocks = *pool.Allocate(MiB(300), MiB(2));
  for (size_t i = 0; i + 1 < blocks.size(); ++i) EXPECT_EQ(blocks[i].size % MiB(2), Bytes(0));
  EXPECT_EQ(Sum(blocks), MiB(300));
  pool.Free(blocks);
  pool.Free(wall);
}

TEST_F(HostPoolTest, ScatteredRemainsServeWhenNothingElseIsLeft) {
  HostPool pool(driver_, MiB(4));
  std::vector<Blocks> units;
  units.reserve(64);
  for (int i = 0; i < 64; ++i) units.push_back(*pool.Allocate(HostPool::kUnit, MiB(2)));
  for (int i = 0; i < 64; i += 2) pool.Free(units[i]);
  const Blocks scattered = *pool.Allocate(MiB(2), MiB(2));
  EXPECT_EQ(scattered.size(), 32u);
  EXPECT_EQ(Sum(scattered), MiB(2));
  EXPECT_EQ(pool.stats().used, MiB(4));
  EXPECT_THAT(pool.Allocate(HostPool::kUnit, MiB(2)), HasReason("HOST_POOL_EXHAUSTED"));
}

// Every byte is in one block at most, no block crosses a slab, and the counts are right, whatever
// came before and wherever pinning is.
TEST_F(HostPoolTest, StaysWholeOverManyMixedCycles) {
  constexpr Bytes kBudget = MiB(13);  // the last slab is a smaller one
  const auto pool = Small(kBudget);
  std::mt19937 random(7);
  std::map<int, Blocks> live;
  std::map<std::byte*, std::byte*> ranges;  // of live blocks: begin to end
  Bytes used{};
  for (int step = 0; step < 8000; ++step) {
    if (step == 4000) pool->StartPinning();
    if (random() % 5 < 3) {
      const Bytes size(1 + static_cast<int64_t>(random() % MiB(3).size()));
      auto blocks = pool->Allocate(size, KiB(512));
      const bool fits = RoundUp(size, HostPool::kUnit) <= kBudget - used;
      ASSERT_EQ(blocks.ok(), fits) << step;
      if (!fits) continue;
      ASSERT_EQ(Sum(*blocks), RoundUp(size, HostPool::kUnit));
      used += Sum(*blocks);
      for (const HostPool::Block& block : *blocks) {
        const PoolMemory& memory = pool->memory();
        const size_t slab = memory.SlabAt(block.data);
        ASSERT_LE(memory.data(slab), block.data);
        ASSERT_LE(block.data + block.size.value(), memory.data(slab) + memory.size(slab).value());
        const auto next = ranges.lower_bound(block.data);
        ASSERT_TRUE(next == ranges.end() || next->first >= block.data + block.size.value());
        ASSERT_TRUE(next == ranges.begin() || std::prev(next)->second <= block.data);
        ranges[block.data] = block.data + block.size.value();
      }
      if (random() % 50 == 0) {
        pool->Demand(*blocks);
        const HostPool::Block& last = blocks->back();
        ASSERT_THAT(pool->AwaitPinned(last.data, last.size, nullptr), IsOk());
      }
      live[step] = *std::move(blocks);
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      for (const HostPool::Block& block : it->second) ranges.erase(block.data);
      used -= Sum(it->second);
      pool->Free(it->second);
      live.erase(it);
    }
    ASSERT_EQ(pool->stats().used, used);
  }
  for (const auto& [step, blocks] : live) pool->Free(blocks);
  const auto whole = pool->Allocate(kBudget, MiB(2));
  ASSERT_THAT(whole, IsOk());
  EXPECT_EQ(whole->size(), 7u);  // a block for each slab: nothing is left in pieces
}

TEST_F(HostPoolTest, ConcurrentUsersNeverShareABlock) {
  HostPool pool(driver_, MiB(16));
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < 300; ++i) {
        const auto blocks = pool.Allocate(KiB(64 + static_cast<int64_t>(random() % 4000)), MiB(2));
        if (!blocks.ok()) continue;
        const int mark = t * 50 + i % 50;
        for (const HostPool::Block& b : *blocks) {
          EXPECT_THAT(pool.AwaitPinned(b.data, b.size, nullptr), IsOk());
          std::memset(b.data, mark, b.size.size());
        }
        for (const HostPool::Block& b : *blocks) {
          EXPECT_EQ(b.data[0], std::byte(mark));
          EXPECT_EQ(b.data[b.size.value() - 1], std::byte(mark));
        }
        pool.Free(*blocks);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().used, Bytes(0));
}

}  // namespace
}  // namespace torpor
