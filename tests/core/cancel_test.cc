// Operations that are cancelled at each of their steps, and callers that want the same at once.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "lib/base/cancel_token.h"
#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

using Outcomes = Result<std::vector<WorkerOutcome>>;

class Cancellation : public CoreFixture {
 protected:
  void StartCore(wire::Quiesce quiesce = wire::Quiesce::kGuard) {
    Setup setup;
    setup.worker_deadline = seconds(60);
    Start(setup);
    worker_ = Connect("a", quiesce);
    ASSERT_THAT(worker_->Allocate("weights", MiB(4), 1), IsOk());
    ASSERT_THAT(worker_->Allocate("runtime", MiB(2), 2), IsOk());
  }
  std::future<Outcomes> StartSleep(const CancelToken* cancel, Duration timeout = seconds(60)) {
    return std::async(std::launch::async, [=] {
      SleepCommand command;
      command.selector = Only(*worker_);
      command.level = 1;
      command.deadline = In(timeout);
      command.cancel = cancel;
      return core_->Sleep(command);
    });
  }
  std::future<Outcomes> StartWake(const CancelToken* cancel) {
    return std::async(std::launch::async, [=] {
      WakeCommand command;
      command.selector = Only(*worker_);
      command.deadline = In(seconds(60));
      command.cancel = cancel;
      return core_->WakeUp(command);
    });
  }
  void HoldAt(CallKind kind) { driver_->StopAt(kind, 1); }
  void ExpectHeld() { ASSERT_TRUE(driver_->WaitUntilStopped(In(seconds(20)))); }
  void Cancel() { token_.Cancel(Status(Code::kCancelled, "TEST_CANCELS", "")); }
  void WaitForOperation() {
    while (!Usage().workers.at(0).operation.has_value()) std::this_thread::yield();
  }

  void ExpectAwake() {
    WaitForRest();
    EXPECT_EQ(Usage().budget.resident, MiB(6));
    EXPECT_EQ(Usage().pool.used, Bytes(0));
    EXPECT_TRUE(worker_->AllHavePattern());
    ExpectBooksAgree();
  }
  void ExpectAsleep() {
    WaitForRest();
    EXPECT_EQ(Usage().budget.resident, Bytes(0));
    EXPECT_EQ(Usage().pool.used, MiB(6));
    ExpectBooksAgree();
  }
  void ExpectNextCycleWorks() {
    ASSERT_THAT(Sleep(All()), IsOk());
    ExpectAsleep();
    ASSERT_THAT(Wake(All()), IsOk());
    ExpectAwake();
  }

  CancelToken token_;
  std::unique_ptr<TestWorker> worker_;
};

TEST_F(Cancellation, BeforeItBegins) {
  StartCore();
  Cancel();
  EXPECT_THAT(StartSleep(&token_).get(), HasReason("TEST_CANCELS"));
  ExpectAwake();
  ExpectNextCycleWorks();
}

TEST_F(Cancellation, WhileTheWorkerIsBeingQuieted) {
  StartCore();
  ASSERT_THAT(worker_->session->WorkBegin({}, std::nullopt), IsOk());
  auto slept = StartSleep(&token_);
  WaitForOperation();
  EXPECT_EQ(slept.wait_for(milliseconds(50)), std::future_status::timeout);
  Cancel();
  const Outcomes outcome = slept.get();
  EXPECT_THAT(outcome, HasReason("TEST_CANCELS"));
  EXPECT_THAT(outcome, HasCode(Code::kCancelled));
  // The worker had not stopped, and need not leave its guard for the roll back.
  WaitForRest();
  ASSERT_THAT(worker_->session->WorkBegin({}, milliseconds(0)), IsOk());
  ASSERT_THAT(worker_->session->WorkEnd(), IsOk());
  ASSERT_THAT(worker_->session->WorkEnd(), IsOk());
  ExpectAwake();
  ExpectNextCycleWorks();
}

TEST_F(Cancellation, DuringTheCopyToTheHost) {
  StartCore();
  HoldAt(CallKind::kCopyToHost);
  auto slept = StartSleep(&token_);
  ExpectHeld();
  Cancel();
  driver_->Continue();
  EXPECT_THAT(slept.get(), HasReason("TEST_CANCELS"));
  ExpectAwake();
  ExpectNextCycleWorks();
}

TEST_F(Cancellation, WhileTheWorkerUnmaps) {
  StartCore();
  worker_->faults->StopAt(CallKind::kUnmap, 1);
  auto slept = StartSleep(&token_);
  ASSERT_TRUE(worker_->faults->WaitUntilStopped(In(seconds(20))));
  Cancel();
  // The caller is told although the worker cannot say yet what it maps.
  const Outcomes outcome = slept.get();
  EXPECT_THAT(outcome, HasReason("TEST_CANCELS"));
  EXPECT_EQ(outcome.status().details().count("rollback_pending"), 1u);
  EXPECT_THAT(Sleep(All()), HasReason("ROLLBACK_PENDING"));
  worker_->faults->Continue();
  ExpectAwake();
  ExpectNextCycleWorks();
}

TEST_F(Cancellation, AfterTheCommitASleepGoesForward) {
  StartCore();
  HoldAt(CallKind::kRelease);
  auto slept = StartSleep(&token_);
  ExpectHeld();
  Cancel();
  driver_->Continue();
  const Outcomes outcome = slept.get();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(outcome->front().device, MiB(6));
  ExpectAsleep();
  ASSERT_THAT(Wake(All()), IsOk());
  ExpectAwake();
}

TEST_F(Cancellation, DuringTheCopyToTheDevice) {
  StartCore();
  ASSERT_THAT(Sleep(All()), IsOk());
  HoldAt(CallKind::kCopyToDevice);
  auto woken = StartWake(&token_);
  ExpectHeld();
  Cancel();
  driver_->Continue();
  EXPECT_THAT(woken.get(), HasReason("TEST_CANCELS"));
  ExpectAsleep();
  ASSERT_THAT(Wake(All()), IsOk());
  ExpectAwake();
}

TEST_F(Cancellation, WhileTheWorkerMaps) {
  StartCore();
  ASSERT_THAT(Sleep(All()), IsOk());
  worker_->faults->StopAt(CallKind::kImport, 1);
  auto woken = StartWake(&token_);
  ASSERT_TRUE(worker_->faults->WaitUntilStopped(In(seconds(20))));
  Cancel();
  EXPECT_THAT(woken.get(), HasReason("TEST_CANCELS"));
  worker_->faults->Continue();
  ExpectAsleep();
  ASSERT_THAT(Wake(All()), IsOk());
  ExpectAwake();
}

// At every driver call: what was asked for, or everything as it was.
TEST_F(Cancellation, AtEveryDriverCall) {
  StartCore();
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  int cancelled = 0;
  int done = 0;
  bool held = true;
  for (int n = 1; held && n < 200; ++n) {
    SCOPED_TRACE("cancelled at driver call " + std::to_string(n));
    held = false;
    for (const bool sleep : {true, false}) {
      ASSERT_THAT(sleep ? Wake(All()) : Sleep(All()), IsOk());
      CancelToken token;
      driver_->StopAt(std::nullopt, n);
      auto operation = sleep ? StartSleep(&token) : StartWake(&token);
      while (operation.wait_for(milliseconds(0)) != std::future_status::ready &&
             !driver_->WaitUntilStopped(In(milliseconds(5)))) {
      }
      held = held || operation.wait_for(milliseconds(0)) != std::future_status::ready;
      token.Cancel(Status(Code::kCancelled, "TEST_CANCELS", ""));
      driver_->Continue();
      const Outcomes outcome = operation.get();
      WaitForRest();
      EXPECT_EQ(Usage().budget.resident, sleep == outcome.ok() ? Bytes(0) : MiB(6));
      EXPECT_EQ(Usage().pool.used, sleep == outcome.ok() ? MiB(6) : Bytes(0));
      EXPECT_TRUE(outcome.ok() || outcome.status().reason() == "TEST_CANCELS");
      ++(outcome.ok() ? done : cancelled);
      ExpectBooksAgree();
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(cancelled, 5);
  EXPECT_GT(done, 5);
  ASSERT_THAT(Wake(All()), IsOk());
  ExpectAwake();
}

TEST_F(Cancellation, WhoWantsTheSameSharesTheOutcome) {
  StartCore();
  HoldAt(CallKind::kCopyToHost);
  auto first = StartSleep(&token_);
  ExpectHeld();
  auto second = StartSleep(nullptr);
  EXPECT_EQ(second.wait_for(milliseconds(50)), std::future_status::timeout);
  EXPECT_THAT(StartSleep(nullptr, milliseconds(30)).get(), HasReason("OPERATION_DEADLINE"));
  const Outcomes other = StartWake(nullptr).get();
  EXPECT_THAT(other, HasReason("OPERATION_IN_PROGRESS"));
  EXPECT_EQ(other.status().details().at("operation"),
            OperationName(*Usage().workers.at(0).operation));
  EXPECT_THAT(Sleep(Only(*worker_), 2), HasReason("OPERATION_IN_PROGRESS"));
  EXPECT_THAT(Sleep(Only(*worker_, {"weights"})), HasReason("OPERATION_IN_PROGRESS"));
  // One of two leaves: the other one's operation goes on.
  Cancel();
  driver_->Continue();
  const Outcomes outcome = second.get();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(outcome->front().device, MiB(6));
  EXPECT_THAT(first.get(), IsOk());
  ExpectAsleep();
}

TEST_F(Cancellation, AWorkersOwnSleepIsShared) {
  StartCore(wire::Quiesce::kSynchronize);
  HoldAt(CallKind::kCopyToHost);
  auto first = StartSleep(nullptr);
  ExpectHeld();
  auto own = std::async(std::launch::async, [&] {
    wire::Sleep sleep;
    sleep.level = 1;
    return worker_->session->Sleep(sleep);
  });
  EXPECT_EQ(own.wait_for(milliseconds(50)), std::future_status::timeout);
  driver_->Continue();
  ASSERT_THAT(first.get(), IsOk());
  const auto reply = own.get();
  ASSERT_THAT(reply, IsOk());
  EXPECT_THAT(reply->status, IsOk());
  EXPECT_EQ(reply->device, MiB(6));
}

}  // namespace
}  // namespace torpor
