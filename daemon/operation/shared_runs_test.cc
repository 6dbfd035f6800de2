#include "daemon/operation/shared_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

constexpr WorkerId kWorker{7};

TimePoint In(Duration duration) { return std::chrono::steady_clock::now() + duration; }

class SharedRunsTest : public testing::Test {
 protected:
  // Does not return before Open, or a cancellation.
  WorkerOutcome Run(const CancelToken& cancel) {
    WorkerOutcome outcome;
    outcome.worker = kWorker;
    outcome.segments = ++runs_;
    const CancelToken::Callback wake(&cancel, [this] {
      MutexLock lock(mutex_);
      changed_.NotifyAll();
    });
    {
      MutexLock lock(mutex_);
      ++started_;
      changed_.NotifyAll();
      while (!open_ && !cancel.cancelled()) changed_.Wait(mutex_);
    }
    outcome.status = cancel.status();
    return outcome;
  }
  std::future<WorkerOutcome> Start(const std::string& wish, TimePoint deadline,
                                   const CancelToken* cancel = nullptr) {
    return std::async(std::launch::async, [=] {
      return shared_.Do(kWorker, wish, deadline, cancel,
                        [this](const CancelToken& token) { return Run(token); });
    });
  }
  void WaitUntilStarted(int runs) {
    MutexLock lock(mutex_);
    while (started_ < runs) changed_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }
  static bool Waits(const std::future<WorkerOutcome>& outcome) {
    return outcome.wait_for(milliseconds(50)) == std::future_status::timeout;
  }
  static Status Cancelled() { return Status(Code::kCancelled, "TEST_CANCELS", ""); }

  SharedRuns shared_;
  Mutex mutex_;
  CondVar changed_;
  bool open_ GUARDED_BY(mutex_) = false;
  int started_ GUARDED_BY(mutex_) = 0;
  std::atomic<int> runs_ = 0;
};

TEST_F(SharedRunsTest, TheSameWishIsRunOnce) {
  auto first = Start("sleep", In(seconds(60)));
  WaitUntilStarted(1);
  auto second = Start("sleep", In(seconds(60)));
  EXPECT_TRUE(Waits(second));
  Open();
  EXPECT_EQ(first.get().segments, 1);
  EXPECT_EQ(second.get().segments, 1);
  // What has ended is not joined.
  EXPECT_EQ(Start("sleep", In(seconds(60))).get().segments, 2);
}

TEST_F(SharedRunsTest, AnotherWishIsNotHeldUp) {
  auto first = Start("sleep", In(seconds(60)));
  WaitUntilStarted(1);
  auto second = Start("wake", In(seconds(60)));
  WaitUntilStarted(2);
  Open();
  EXPECT_EQ(first.get().segments, 1);
  EXPECT_EQ(second.get().segments, 2);
}

TEST_F(SharedRunsTest, AJoinedCallerHasItsOwnDeadlineAndCancellation) {
  auto first = Start("sleep", In(seconds(60)));
  WaitUntilStarted(1);
  const WorkerOutcome late = Start("sleep", In(milliseconds(30))).get();
  EXPECT_THAT(late.status, HasReason("OPERATION_DEADLINE"));
  EXPECT_EQ(late.worker, kWorker);
  CancelToken token;
  auto cancelled = Start("sleep", In(seconds(60)), &token);
  EXPECT_TRUE(Waits(cancelled));
  token.Cancel(Cancelled());
  EXPECT_THAT(cancelled.get().status, HasReason("TEST_CANCELS"));
  EXPECT_TRUE(Waits(first));
  Open();
  EXPECT_THAT(first.get().status, IsOk());
  EXPECT_EQ(runs_, 1);
}

TEST_F(SharedRunsTest, ACancelledFirstCallerStopsNobodyElse) {
  CancelToken token;
  auto first = Start("sleep", In(seconds(60)), &token);
  WaitUntilStarted(1);
  auto second = Start("sleep", In(seconds(60)));
  EXPECT_TRUE(Waits(second));
  token.Cancel(Cancelled());
  EXPECT_TRUE(Waits(second));
  Open();
  EXPECT_THAT(second.get().status, IsOk());
  EXPECT_THAT(first.get().status, IsOk());
  EXPECT_EQ(runs_, 1);
}

TEST_F(SharedRunsTest, TheLastCallerCancelsTheRun) {
  CancelToken token;
  auto first = Start("sleep", In(seconds(60)), &token);
  WaitUntilStarted(1);
  EXPECT_THAT(Start("sleep", In(milliseconds(30))).get().status, HasReason("OPERATION_DEADLINE"));
  token.Cancel(Cancelled());
  EXPECT_THAT(first.get().status, HasReason("TEST_CANCELS"));
}

TEST_F(SharedRunsTest, WhenTheFirstCallerGivesUpTheNextRunsItAgain) {
  std::promise<void> hold;
  std::atomic<bool> running = false;
  auto first = std::async(std::launch::async, [&] {
    return shared_.Do(kWorker, "sleep", In(milliseconds(1)), nullptr, [&](const CancelToken&) {
      WorkerOutcome outcome;
      running = true;
      hold.get_future().wait();
      outcome.status = DeadlineExceeded("WORKER_SILENT", "");
      return outcome;
    });
  });
  while (!running) std::this_thread::yield();
  auto second = Start("sleep", In(seconds(60)));
  EXPECT_TRUE(Waits(second));
  hold.set_value();
  EXPECT_THAT(first.get().status, HasReason("WORKER_SILENT"));
  Open();
  EXPECT_THAT(second.get().status, IsOk());
  EXPECT_EQ(runs_, 1);
}

// A worker whose first operation is not rolled back before `Ended`.
class RollBackTest : public SharedRunsTest {
 protected:
  std::future<WorkerOutcome> StartAgain(TimePoint deadline, const CancelToken* cancel = nullptr) {
    return std::async(std::launch::async, [=] {
      const auto run = [this](const CancelToken&) {
        WorkerOutcome outcome;
        outcome.segments = ++runs_;
        if (!rolled_back_) outcome.status = Aborted("ROLLBACK_PENDING", "");
        return outcome;
      };
      return shared_.Do(kWorker, "sleep", deadline, cancel, run, true);
    });
  }
  void RollBack() {
    rolled_back_ = true;
    shared_.Ended();
  }
  std::atomic<bool> rolled_back_ = false;
};

TEST_F(RollBackTest, TheRollBackOfWhatWasGivenUpIsWaitedFor) {
  auto second = StartAgain(In(seconds(60)));
  auto third = StartAgain(In(seconds(60)));
  EXPECT_TRUE(Waits(second));
  EXPECT_TRUE(Waits(third));
  shared_.Ended();  // another worker's
  EXPECT_TRUE(Waits(second));
  RollBack();
  EXPECT_THAT(second.get().status, IsOk());
  EXPECT_THAT(third.get().status, IsOk());
}

TEST_F(RollBackTest, ByTheDeadlineAndCancellationOfWhoWaits) {
  EXPECT_THAT(StartAgain(In(milliseconds(30))).get().status, HasReason("OPERATION_DEADLINE"));
  CancelToken token;
  auto cancelled = StartAgain(In(seconds(60)), &token);
  EXPECT_TRUE(Waits(cancelled));
  token.Cancel(Cancelled());
  EXPECT_THAT(cancelled.get().status, HasReason("TEST_CANCELS"));
}

TEST_F(SharedRunsTest, AClosedRunIsNotJoined) {
  auto first = Start("sleep", In(seconds(60)));
  WaitUntilStarted(1);
  auto joined = Start("sleep", In(seconds(60)));
  EXPECT_TRUE(Waits(joined));
  shared_.Close(WorkerId(8));
  shared_.Close(kWorker);
  auto next = Start("sleep", In(seconds(60)));
  WaitUntilStarted(2);
  Open();
  EXPECT_EQ(first.get().segments, 1);
  EXPECT_EQ(joined.get().segments, 1);
  EXPECT_EQ(next.get().segments, 2);
}

}  // namespace
}  // namespace torpor
