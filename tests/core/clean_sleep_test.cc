// A sleep copies what its images do not hold already.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

std::byte* At(const TestWorker::Segment& segment, Bytes offset) {
  return reinterpret_cast<std::byte*>(segment.address.value()) + offset.value();
}

class CleanSleep : public CoreFixture {
 protected:
  void SetUp() override { Begin({}); }
  void Begin(const Setup& setup) {
    Start(setup);
    worker_ = Connect("a");
    ASSERT_THAT(worker_->Allocate("weights", MiB(9), 1), IsOk());
    ASSERT_THAT(worker_->Allocate("weights", KiB(192), 2), IsOk());
    ASSERT_THAT(worker_->Allocate("weights", MiB(4), 3), IsOk());
    ASSERT_THAT(worker_->Allocate("kv_cache", MiB(2), 4), IsOk());
  }
  WorkerOutcome SleepOne(int32_t level = 1) {
    const auto slept = Sleep(Only(*worker_), level);
    EXPECT_THAT(slept, IsOk());
    return slept.ok() ? slept->front() : WorkerOutcome();
  }
  void WakeAndCheck() {
    ASSERT_THAT(Wake(Only(*worker_)), IsOk());
    EXPECT_TRUE(worker_->AllHavePattern("weights"));
    ExpectBooksAgree();
  }
  void Cycle() {
    SleepOne();
    WakeAndCheck();
  }

  static constexpr Bytes kWeights = MiB(13) + KiB(192);
  std::unique_ptr<TestWorker> worker_;
};

TEST_F(CleanSleep, UnchangedMemoryIsNotCopied) {
  const WorkerOutcome first = SleepOne();
  EXPECT_EQ(first.copied, kWeights);
  EXPECT_EQ(first.unchanged, Bytes(0));
  WakeAndCheck();
  EXPECT_EQ(Stats(*worker_, "weights").clean, kWeights);
  EXPECT_EQ(Usage().pool_clean, kWeights);
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  for (int i = 0; i < 3; ++i) {
    driver_->ResetCounts();
    const WorkerOutcome again = SleepOne();
    EXPECT_EQ(again.copied, Bytes(0));
    EXPECT_EQ(again.unchanged, kWeights);
    EXPECT_EQ(again.device, kWeights + MiB(2));
    EXPECT_EQ(again.discarded, MiB(2));
    EXPECT_EQ(driver_->Calls(CallKind::kCopyToHost), 0);
    EXPECT_EQ(Usage().pool.used, kWeights);
    EXPECT_EQ(Usage().pool_clean, Bytes(0));
    ExpectBooksAgree();
    WakeAndCheck();
  }
}

TEST_F(CleanSleep, ChangedChunksAloneAreCopied) {
  Cycle();
  // One byte each, in the first and in the last chunk of a segment.
  for (const Bytes at : {MiB(1), MiB(9) - Bytes(1)}) *At(worker_->segments[0], at) ^= std::byte{1};
  const WorkerOutcome slept = SleepOne();
  EXPECT_EQ(slept.copied, MiB(2) + MiB(1));
  EXPECT_EQ(slept.unchanged, kWeights - MiB(3));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_FALSE(TestWorker::HasPattern(worker_->segments[0]));
  for (const Bytes at : {MiB(1), MiB(9) - Bytes(1)}) *At(worker_->segments[0], at) ^= std::byte{1};
  EXPECT_TRUE(worker_->AllHavePattern("weights"));
  // What was copied has its digest.
  EXPECT_EQ(SleepOne().copied, MiB(3));
  WakeAndCheck();
  EXPECT_EQ(SleepOne().copied, Bytes(0));
}

TEST_F(CleanSleep, WhatIsWrittenBackIsUnchanged) {
  Cycle();
  TestWorker::Fill(worker_->segments[0]);
  EXPECT_EQ(SleepOne().copied, Bytes(0));
}

TEST_F(CleanSleep, ASegmentInThePlaceOfAFreedOneIsCopied) {
  Cycle();
  ASSERT_THAT(worker_->Free(2), IsOk());
  ASSERT_THAT(worker_->Allocate("weights", MiB(4), 7), IsOk());
  const WorkerOutcome slept = SleepOne();
  EXPECT_EQ(slept.copied, MiB(4));
  EXPECT_EQ(slept.unchanged, kWeights - MiB(4));
  WakeAndCheck();
}

TEST_F(CleanSleep, ADiscardDropsTheImage) {
  Cycle();
  EXPECT_EQ(SleepOne(2).discarded, kWeights + MiB(2));
  EXPECT_EQ(Usage().pool_clean, Bytes(0));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(TestWorker::IsZero(worker_->segments[0]));
  ExpectBooksAgree();
  EXPECT_EQ(SleepOne().copied, kWeights);
}

TEST_F(CleanSleep, WithoutDigestsEverythingIsCopied) {
  Cycle();
  for (const bool while_copying : {false, true}) {
    SCOPED_TRACE(while_copying);
    if (while_copying) {
      // The comparison finds everything changed, then the digest of the copies fails.
      for (TestWorker::Segment& segment : worker_->segments) {
        ++segment.seed;
        TestWorker::Fill(segment);
      }
      driver_->FailNth(CallKind::kDigest, 4, Internal("INJECTED_FAULT", "made to fail"));
    } else {
      driver_->FailNth(CallKind::kDigest, 1, Internal("INJECTED_FAULT", "made to fail"));
    }
    const WorkerOutcome slept = SleepOne();
    EXPECT_EQ(driver_->ClearFaults(), 0);
    EXPECT_EQ(slept.copied, kWeights);
    EXPECT_EQ(slept.unchanged, Bytes(0));
    WakeAndCheck();
    if (while_copying) {
      EXPECT_EQ(SleepOne().copied, kWeights);
      WakeAndCheck();
    }
    EXPECT_EQ(SleepOne().copied, Bytes(0));
    WakeAndCheck();
  }
}

// A copy that failed may have overwritten a part of an image: whatever call fails, the next sleep
// leaves nothing wrong in it.
TEST_F(CleanSleep, AnImageIsRightAfterAnyFailure) {
  Cycle();
  uint64_t seed = 100;
  for (int64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    TestWorker::Segment& changed = worker_->segments[static_cast<size_t>(n) % 3];
    changed.seed = ++seed;
    TestWorker::Fill(changed);
    driver_->FailNth(std::nullopt, n, Internal("INJECTED_FAULT", "made to fail"));
    const auto slept = Sleep(Only(*worker_));
    const bool faulted = driver_->ClearFaults() == 0;
    WaitForRest();
    if (!slept.ok()) {
      EXPECT_TRUE(worker_->AllHavePattern("weights"));
      EXPECT_EQ(Usage().pool.used, Bytes(0));
      ExpectBooksAgree();
      SleepOne();
    }
    WakeAndCheck();
    if (HasFailure() || !faulted) break;
  }
}

class CleanSleepInASmallPool : public CleanSleep {
 protected:
  void SetUp() override {
    Setup setup;
    setup.host_pool = MiB(20);
    Begin(setup);
  }
};

TEST_F(CleanSleepInASmallPool, CleanImagesMakeRoom) {
  Cycle();
  const auto other = Connect("b");
  ASSERT_THAT(other->Allocate("weights", MiB(10), 9), IsOk());
  ASSERT_THAT(Sleep(Only(*other)), IsOk());
  EXPECT_EQ(Usage().pool.used, MiB(10));
  EXPECT_LT(Usage().pool_clean, kWeights);
  ExpectBooksAgree();
  // Not all of it fits now, and nothing is lost.
  EXPECT_THAT(Sleep(Only(*worker_)), HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_TRUE(worker_->AllHavePattern("weights"));
  ASSERT_THAT(Wake(Only(*other)), IsOk());
  EXPECT_TRUE(other->AllHavePattern());
  const WorkerOutcome slept = SleepOne();
  EXPECT_EQ(slept.copied + slept.unchanged, kWeights);
  EXPECT_GT(slept.copied, Bytes(0));
  WakeAndCheck();
  ASSERT_THAT(Sleep(Only(*other)), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(other->AllHavePattern());
}

TEST_F(CleanSleepInASmallPool, host_memory_does_not_grow) {
  const auto other = Connect("b");
  ASSERT_THAT(other->Allocate("weights", MiB(6), 9), IsOk());
  for (int i = 0; i < 100; ++i) {
    const TestWorker& one = i % 2 == 0 ? *worker_ : *other;
    if (i % 3 == 0) TestWorker::Fill(one.segments[0]);
    ASSERT_THAT(Sleep(Only(one)), IsOk());
    ASSERT_THAT(Wake(Only(one)), IsOk());
    const UsageReport usage = Usage();
    EXPECT_EQ(usage.pool.used, Bytes(0));
    EXPECT_LE(usage.pool_clean, MiB(20));
    EXPECT_LE(usage.pool.pinned, MiB(20));
  }
  EXPECT_TRUE(worker_->AllHavePattern("weights"));
  EXPECT_TRUE(other->AllHavePattern());
  ExpectBooksAgree();
}

}  // namespace
}  // namespace torpor
