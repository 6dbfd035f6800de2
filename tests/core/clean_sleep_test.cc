// A sleep copies what its images do not hold already.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lib/base/cancel_token.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/digest_word.h"
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

// --- Digests that lie

class VerifyImages : public CleanSleep, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Setup setup;
    setup.verify_images = GetParam();
    Begin(setup);
  }
  // Where the first factor of a word's product is zero, the other half does not count.
  static uint64_t Blind(uint64_t word) {
    const uint64_t counter = DigestCounter(word);
    const uint64_t first = (counter ^ (counter >> 32)) * kDigestMixFirst;
    return 0 - (first ^ (first >> 32));
  }
};

TEST_P(VerifyImages, FindWhatTheDigestDoesNot) {
  // The first segment begins at the beginning of its arena.
  const uint64_t word = MiB(3).size() / 16;
  uint64_t bytes[2] = {Blind(word), 1};
  std::memcpy(At(worker_->segments[0], MiB(3)), bytes, sizeof bytes);
  SleepOne();
  ASSERT_THAT(Wake(All()), IsOk());
  bytes[1] = 2;
  std::memcpy(At(worker_->segments[0], MiB(3)), bytes, sizeof bytes);
  const WorkerOutcome slept = SleepOne();
  EXPECT_EQ(slept.copied, GetParam() ? MiB(2) : Bytes(0));
  EXPECT_EQ(slept.unchanged, kWeights - slept.copied);
  ASSERT_THAT(Wake(All()), IsOk());
  uint64_t found[2] = {};
  std::memcpy(found, At(worker_->segments[0], MiB(3)), sizeof found);
  EXPECT_EQ(found[1], GetParam() ? 2u : 1u);
  // What is unchanged stays unchanged.
  EXPECT_EQ(SleepOne().copied, Bytes(0));
}

INSTANTIATE_TEST_SUITE_P(OnAndOff, VerifyImages, ::testing::Bool());

// --- A pool that is not pinned yet

class ColdPool : public CoreFixture {
 protected:
  void SetUp() override {
    Setup setup;
    setup.pool_slab = MiB(2);
    Start(setup);
    worker_ = Connect("a");
    ASSERT_THAT(worker_->Allocate("weights", MiB(24), 1), IsOk());
  }
  std::unique_ptr<TestWorker> worker_;
};

// Copies go on while the rest of their room is pinned, and nothing else is.
TEST_F(ColdPool, first_sleep_is_not_slow) {
  driver_->StopAt(CallKind::kRegisterHost, 6);
  std::thread sleeping([&] { EXPECT_THAT(Sleep(All()), IsOk()); });
  ASSERT_TRUE(driver_->WaitUntilStopped(In(seconds(20))));
  const TimePoint until = In(seconds(20));
  while (driver_->Calls(CallKind::kCopyToHost) < 5 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(driver_->Calls(CallKind::kCopyToHost), 5);
  EXPECT_EQ(Usage().pool.pinned, MiB(2) * 5);
  driver_->Continue();
  sleeping.join();
  EXPECT_EQ(Usage().pool.pinned, MiB(24));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
}

// Either the sleep had not come to it yet, and it is pinned by then, or nothing has changed.
TEST_F(ColdPool, ARefusedSlabLosesNothing) {
  for (int n = 1; n <= 4; ++n) {
    SCOPED_TRACE(n);
    driver_->FailNth(CallKind::kRegisterHost, n, ResourceExhausted("HOST_MEMORY_NOT_PINNED", "no"));
    const auto slept = Sleep(All());
    driver_->ClearFaults();
    WaitForRest();
    if (!slept.ok()) {
      EXPECT_THAT(slept, HasReason("HOST_MEMORY_NOT_PINNED"));
      EXPECT_TRUE(worker_->AllHavePattern());
      EXPECT_EQ(Usage().pool.used, Bytes(0));
      ASSERT_THAT(Sleep(All()), IsOk());
    }
    ASSERT_THAT(Wake(All()), IsOk());
    EXPECT_TRUE(worker_->AllHavePattern());
    ASSERT_THAT(worker_->Allocate("weights", MiB(4), static_cast<uint64_t>(n) + 1), IsOk());
  }
}

TEST_F(ColdPool, ASleepThatWaitsForItCanBeCancelled) {
  driver_->StopAt(CallKind::kRegisterHost, 4);
  CancelToken token;
  Status status;
  std::thread sleeping([&] {
    SleepCommand command;
    command.selector = All();
    command.level = 1;
    command.deadline = In(seconds(60));
    command.cancel = &token;
    status = core_->Sleep(command).status();
  });
  ASSERT_TRUE(driver_->WaitUntilStopped(In(seconds(20))));
  token.Cancel(Aborted("NOT_WANTED", "the caller has gone"));
  sleeping.join();
  EXPECT_EQ(status.reason(), "NOT_WANTED");
  driver_->Continue();
  EXPECT_TRUE(worker_->AllHavePattern());
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
}

// --- Many segments

class ManySegments : public CoreFixture {};

// Handles, calls and copies go by what lies side by side, not by the segment.
TEST_F(ManySegments, many_small_segments) {
  Setup setup;
  setup.device = MiB(192);
  setup.host_pool = MiB(192);
  Start(setup);
  const auto worker = Connect("a");
  constexpr int kSegments = 500;
  for (int i = 0; i < kSegments; ++i) {
    ASSERT_THAT(worker->Allocate("weights", KiB(256), static_cast<uint64_t>(i) + 1), IsOk());
  }
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  for (int cycle = 0; cycle < 2; ++cycle) {
    driver_->ResetCounts();
    worker->faults->ResetCounts();
    const auto slept = Sleep(All());
    ASSERT_THAT(slept, IsOk());
    EXPECT_EQ(slept->front().segments, kSegments);
    EXPECT_EQ(slept->front().unchanged, KiB(256) * kSegments);
    ASSERT_THAT(Wake(All()), IsOk());
    EXPECT_EQ(driver_->Calls(CallKind::kCreate), 1);
    EXPECT_EQ(driver_->Calls(CallKind::kRelease), 1);
    EXPECT_LE(driver_->Calls(CallKind::kCopyToDevice), 4);
    EXPECT_LE(driver_->Calls(std::nullopt), 40);
    EXPECT_LE(worker->faults->Calls(std::nullopt), 12);
  }
  // A segment inside of it may go.
  for (const size_t i : {0, 7, 300}) ASSERT_THAT(worker->Free(i), IsOk());
  EXPECT_EQ(Stats(*worker, "weights").stranded, KiB(256) * 3);
  ASSERT_THAT(Sleep(All()), IsOk());
  EXPECT_EQ(Stats(*worker, "weights").stranded, Bytes(0));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
  ExpectBooksAgree();
}

// --- What is left

class Residual : public CoreFixture {};

TEST_F(Residual, residual_is_explained) {
  Start();
  const auto worker = Connect("a");
  const auto other = Connect("b");
  ASSERT_THAT(worker->Allocate("weights", MiB(8), 1), IsOk());
  ASSERT_THAT(worker->Allocate("graphs", MiB(3), 2), IsOk());
  ASSERT_THAT(other->Allocate("weights", MiB(5), 3), IsOk());
  // Someone who is not a worker.
  const auto foreign = *device_->Create(MiB(2));
  ASSERT_THAT(worker->session->ReportUsage(MiB(9), MiB(11)), IsOk());

  SleepCommand command;
  command.selector = Only(*worker);
  command.policies = {{"weights", wire::Policy::kOffload}};
  command.deadline = In(seconds(60));
  ASSERT_THAT(core_->Sleep(command), IsOk());

  const UsageReport usage = Usage();
  EXPECT_EQ(usage.budget.resident, MiB(8));
  EXPECT_EQ(usage.budget.other, MiB(2));
  EXPECT_EQ(usage.budget.total,
            usage.budget.free + usage.budget.resident + usage.budget.other + usage.budget.context);
  EXPECT_EQ(Stats(*worker, "weights").resident, Bytes(0));
  EXPECT_EQ(Stats(*worker, "weights").host, MiB(8));
  EXPECT_EQ(Stats(*worker, "graphs").resident, MiB(3));
  EXPECT_EQ(Stats(*other, "weights").resident, MiB(5));
  for (const WorkerStats& stats : usage.workers) {
    if (stats.info.id != worker->id) continue;
    EXPECT_EQ(stats.info.reported_live, MiB(9));
    EXPECT_EQ(stats.info.reported_reserved, MiB(11));
  }
  ASSERT_THAT(device_->Release(foreign), IsOk());
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
