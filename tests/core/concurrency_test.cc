#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

class Concurrency : public CoreFixture {
 protected:
  void SetUp() override {
    Start();
    worker_ = Connect("a");
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_THAT(worker_->Allocate("weights", MiB(1), 1 + i), IsOk());
    }
  }
  std::future<Result<std::vector<WorkerOutcome>>> StartSleep(Duration timeout = seconds(30)) {
    return std::async(std::launch::async, [=] { return Sleep(Only(*worker_), 1, timeout); });
  }
  std::future<Result<std::vector<WorkerOutcome>>> StartWake() {
    return std::async(std::launch::async, [=] { return Wake(Only(*worker_)); });
  }
  // Holds the daemon at its next call of `kind`.
  void HoldAt(CallKind kind) { driver_->StopAt(kind, 1); }
  void ExpectHeld() { ASSERT_TRUE(driver_->WaitUntilStopped(In(seconds(20)))); }

  std::unique_ptr<TestWorker> worker_;
};

TEST_F(Concurrency, FreeDuringASleepReturnsAtOnce) {
  HoldAt(CallKind::kCopyToHost);
  auto slept = StartSleep();
  ExpectHeld();
  ASSERT_THAT(worker_->Free(1), IsOk());
  driver_->Continue();
  ASSERT_THAT(slept.get(), IsOk());
  EXPECT_EQ(Usage().pool.used, MiB(3));
  EXPECT_EQ(keeper_.segments().size(), 3u);
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Concurrency, FreeDuringASleepThatRollsBack) {
  HoldAt(CallKind::kCopyToHost);
  auto slept = StartSleep();
  ExpectHeld();
  ASSERT_THAT(worker_->Free(1), IsOk());
  driver_->FailNth(CallKind::kRecordEvent, 1, Internal("INJECTED_FAULT", "made to fail"));
  driver_->Continue();
  EXPECT_THAT(slept.get(), HasReason("INJECTED_FAULT"));
  WaitForRest();
  EXPECT_TRUE(worker_->AllHavePattern());
  EXPECT_EQ(Usage().budget.resident, MiB(3));
  EXPECT_EQ(keeper_.segments().size(), 3u);
  ExpectBooksAgree();
  // Its addresses can be used again.
  ASSERT_THAT(worker_->Allocate("weights", MiB(1), 50), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
}

TEST_F(Concurrency, FreeDuringAWakeReturnsAtOnce) {
  ASSERT_THAT(Sleep(All()), IsOk());
  HoldAt(CallKind::kCopyToDevice);
  auto woken = StartWake();
  ExpectHeld();
  ASSERT_THAT(worker_->Free(1), IsOk());
  driver_->Continue();
  ASSERT_THAT(woken.get(), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
  ExpectBooksAgree();
  while (!worker_->segments.empty()) ASSERT_THAT(worker_->Free(0), IsOk());
  EXPECT_EQ(Usage().budget.resident, Bytes(0));
}

TEST_F(Concurrency, AllocateNeverWaitsForASleepOfItsOwnWorker) {
  HoldAt(CallKind::kCopyToHost);
  auto slept = StartSleep();
  ExpectHeld();
  ASSERT_THAT(worker_->Allocate("weights", MiB(2), 50), IsOk());
  ASSERT_THAT(worker_->Allocate("fresh", MiB(2), 51), IsOk());
  driver_->Continue();
  ASSERT_THAT(slept.get(), IsOk());
  EXPECT_TRUE(TestWorker::HasPattern(worker_->segments[4]));
  EXPECT_TRUE(TestWorker::HasPattern(worker_->segments[5]));
  EXPECT_EQ(Stats(*worker_, "weights").offloaded, MiB(4));
  EXPECT_EQ(Stats(*worker_, "weights").resident, MiB(2));
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Concurrency, TheSecondOperationOnAWorkerIsAborted) {
  HoldAt(CallKind::kCopyToHost);
  auto slept = StartSleep();
  ExpectHeld();
  const auto second = Wake(Only(*worker_));
  EXPECT_THAT(second, HasReason("OPERATION_IN_PROGRESS"));
  EXPECT_THAT(second, HasCode(Code::kAborted));
  const UsageReport usage = Usage();
  ASSERT_EQ(usage.workers.size(), 1u);
  ASSERT_TRUE(usage.workers[0].operation.has_value());
  EXPECT_EQ(second.status().details().at("operation"), OperationName(*usage.workers[0].operation));
  EXPECT_EQ(usage.workers[0].tags[0].moving, 4);
  driver_->Continue();
  ASSERT_THAT(slept.get(), IsOk());
}

TEST_F(Concurrency, ADeadlineThatPassesDuringTheCopyRollsBack) {
  HoldAt(CallKind::kCopyToHost);
  const TimePoint deadline = In(seconds(2));
  auto slept = StartSleep(deadline - std::chrono::steady_clock::now());
  ExpectHeld();
  std::this_thread::sleep_until(deadline + seconds(1));
  driver_->Continue();
  const auto result = slept.get();
  EXPECT_THAT(result, HasCode(Code::kDeadlineExceeded));
  WaitForRest();
  EXPECT_TRUE(worker_->AllHavePattern());
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  ExpectBooksAgree();
}

TEST_F(Concurrency, NeighboursMoveInOppositeDirectionsAtOnce) {
  const auto neighbour = Connect("b");
  ASSERT_THAT(neighbour->Allocate("weights", MiB(4), 70), IsOk());
  ASSERT_THAT(Sleep(Only(*neighbour)), IsOk());
  HoldAt(CallKind::kCopyToHost);
  auto slept = StartSleep();
  ExpectHeld();
  // The other worker's wake goes through while this one's sleep is held up.
  ASSERT_THAT(Wake(Only(*neighbour)), IsOk());
  EXPECT_TRUE(neighbour->AllHavePattern());
  driver_->Continue();
  ASSERT_THAT(slept.get(), IsOk());
  ASSERT_THAT(Wake(Only(*worker_)), IsOk());
  EXPECT_TRUE(worker_->AllHavePattern());
}

TEST_F(Concurrency, AWorkerThatLeavesDuringItsSleepLeavesNothing) {
  const auto neighbour = Connect("b");
  ASSERT_THAT(neighbour->Allocate("weights", MiB(4), 70), IsOk());
  HoldAt(CallKind::kCopyToHost);
  const Selector selector = Only(*worker_);
  auto slept = std::async(std::launch::async, [=] { return Sleep(selector); });
  ExpectHeld();
  worker_.reset();
  driver_->Continue();
  (void)slept.get();
  WaitForWorkers(1);
  EXPECT_EQ(Usage().budget.resident, MiB(4));
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  EXPECT_TRUE(neighbour->AllHavePattern());
  ExpectBooksAgree();
}

}  // namespace
}  // namespace torpor
