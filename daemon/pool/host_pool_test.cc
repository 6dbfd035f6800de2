#include "daemon/pool/host_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

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
  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"pool", MiB(64), MiB(2)});
  FaultDriver driver_{*host_};
};

TEST_F(HostPoolTest, PinsNothingBeforeItIsNeeded) {
  HostPool pool(driver_, GiB(1));
  EXPECT_EQ(pool.stats().pinned, Bytes(0));
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 0);
}

TEST_F(HostPoolTest, GrowsSlabBySlabAndUnregistersAllAtItsEnd) {
  {
    HostPool pool(driver_, MiB(600));
    const Blocks first = *pool.Allocate(MiB(200), MiB(2));
    EXPECT_EQ(pool.stats().pinned, HostPool::kSlab);
    const Blocks second = *pool.Allocate(MiB(100), MiB(2));
    EXPECT_EQ(pool.stats().pinned, HostPool::kSlab * 2);
    const Blocks third = *pool.Allocate(MiB(300), MiB(2));
    EXPECT_EQ(pool.stats().pinned, MiB(600));  // the last slab is what the budget leaves
    EXPECT_EQ(pool.stats().used, MiB(600));
    EXPECT_EQ(Sum(first) + Sum(second) + Sum(third), MiB(600));
    for (const Blocks& blocks : {first, second, third}) pool.Free(blocks);
    EXPECT_EQ(pool.stats().used, Bytes(0));
    EXPECT_EQ(pool.stats().pinned, MiB(600));
  }
  EXPECT_EQ(driver_.Calls(CallKind::kRegisterHost), 3);
  EXPECT_EQ(driver_.Calls(CallKind::kUnregisterHost), 3);
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

TEST_F(HostPoolTest, MoreThanTheBudgetIsRefusedBeforeAnythingIsPinned) {
  HostPool pool(driver_, MiB(8));
  EXPECT_THAT(pool.Allocate(GiB(1), MiB(2)), HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_EQ(pool.stats().pinned, Bytes(0));
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

TEST_F(HostPoolTest, AFailedRegistrationLeavesNothingBehind) {
  HostPool pool(driver_, MiB(8));
  driver_.FailNth(CallKind::kRegisterHost, 1, Internal("FAULT", "injected"));
  EXPECT_THAT(pool.Allocate(MiB(2), MiB(2)), HasReason("FAULT"));
  EXPECT_EQ(pool.stats().pinned, Bytes(0));
  EXPECT_EQ(pool.stats().used, Bytes(0));
  EXPECT_THAT(pool.Allocate(MiB(2), MiB(2)), IsOk());
}

TEST_F(HostPoolTest, RemainsServeWhenNoMoreCanBePinned) {
  HostPool pool(driver_, HostPool::kSlab * 2);
  const Blocks most = *pool.Allocate(HostPool::kSlab - KiB(512), MiB(2));
  const Blocks wall = *pool.Allocate(KiB(64), MiB(2));
  const Blocks rest = *pool.Allocate(KiB(448), MiB(2));
  pool.Free(rest);
  pool.Free({{most[0].data, KiB(64)}});
  // 64 KiB and 448 KiB are free: no single block of them has 512 KiB.
  driver_.FailNth(CallKind::kRegisterHost, 1, Internal("FAULT", "injected"));
  const auto blocks = pool.Allocate(KiB(512), MiB(2));
  ASSERT_THAT(blocks, IsOk());
  EXPECT_EQ(blocks->size(), 2u);
  EXPECT_EQ(pool.stats().pinned, HostPool::kSlab);
}

// Every byte is in one block at most, and the counts are right, whatever came before.
TEST_F(HostPoolTest, StaysWholeOverManyMixedCycles) {
  HostPool pool(driver_, MiB(12));
  std::mt19937 random(7);
  std::map<int, Blocks> live;
  std::map<std::byte*, std::byte*> ranges;  // of live blocks: begin to end
  Bytes used{};
  for (int step = 0; step < 6000; ++step) {
    if (random() % 5 < 3) {
      const Bytes size(1 + static_cast<int64_t>(random() % MiB(3).size()));
      auto blocks = pool.Allocate(size, MiB(2));
      const bool fits = RoundUp(size, HostPool::kUnit) <= MiB(12) - used;
      ASSERT_EQ(blocks.ok(), fits) << step;
      if (!fits) continue;
      ASSERT_EQ(Sum(*blocks), RoundUp(size, HostPool::kUnit));
      used += Sum(*blocks);
      for (const HostPool::Block& block : *blocks) {
        const auto next = ranges.lower_bound(block.data);
        ASSERT_TRUE(next == ranges.end() || next->first >= block.data + block.size.value());
        ASSERT_TRUE(next == ranges.begin() || std::prev(next)->second <= block.data);
        ranges[block.data] = block.data + block.size.value();
      }
      live[step] = *std::move(blocks);
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      for (const HostPool::Block& block : it->second) ranges.erase(block.data);
      used -= Sum(it->second);
      pool.Free(it->second);
      live.erase(it);
    }
    ASSERT_EQ(pool.stats().used, used);
  }
  for (const auto& [step, blocks] : live) pool.Free(blocks);
  const auto whole = pool.Allocate(MiB(12), MiB(2));
  ASSERT_THAT(whole, IsOk());
  EXPECT_EQ(whole->size(), 1u);  // nothing is left in pieces
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
        for (const HostPool::Block& b : *blocks) std::memset(b.data, mark, b.size.size());
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
