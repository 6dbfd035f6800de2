// Workers in processes of their own, killed and stopped by real signals while the daemon is held at
// each of its driver calls.

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

class Processes : public CoreFixture {
 protected:
  void StartCore(Duration worker_deadline = seconds(20)) {
    Setup setup;
    setup.worker_deadline = worker_deadline;
    Start(setup);
    neighbour_ = Connect("neighbour");
    ASSERT_THAT(neighbour_->Allocate("weights", MiB(2), 99), IsOk());
  }

  std::unique_ptr<WorkerProcess> Spawn() {
    auto worker = WorkerProcess::Connect(directory_ + "/worker.sock", "victim");
    EXPECT_THAT(worker, IsOk());
    if (!worker.ok()) return nullptr;
    EXPECT_THAT((*worker)->Allocate("weights", "192KiB", 1), IsOk());
    EXPECT_THAT((*worker)->Allocate("weights", "64KiB", 2), IsOk());
    EXPECT_THAT((*worker)->Allocate("kv_cache", "128KiB", 3), IsOk());
    return *std::move(worker);
  }

  static Selector Victim() {
    Selector selector;
    selector.workers = {"victim"};
    return selector;
  }

  // Everything of the victim is gone, the neighbour is as it was and can sleep and wake.
  void ExpectOnlyNeighbourLeft() {
    WaitForWorkers(1);
    // A dying process may hold its mappings for a moment longer.
    const TimePoint until = In(seconds(20));
    while (Usage().budget.other > Bytes(0) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_EQ(Usage().budget.resident, MiB(2));
    EXPECT_EQ(Usage().budget.other, Bytes(0));
    EXPECT_EQ(Usage().pool.used, Bytes(0));
    ExpectBooksAgree();
    EXPECT_TRUE(neighbour_->AllHavePattern());
    ASSERT_THAT(Sleep(Only(*neighbour_)), IsOk());
    ASSERT_THAT(Wake(Only(*neighbour_)), IsOk());
    EXPECT_TRUE(neighbour_->AllHavePattern());
  }

  // Kills a fresh worker while the daemon is held at the first, second, ... driver call of
  // `operation`, until it ends without being held.
  void KillAtEveryCall(const std::function<void(WorkerProcess&)>& before,
                       const std::function<void(WorkerProcess&)>& operation) {
    constexpr int kMostCalls = 200;
    int n = 1;
    for (; n <= kMostCalls; ++n) {
      SCOPED_TRACE("killed at driver call " + std::to_string(n));
      const auto worker = Spawn();
      ASSERT_NE(worker, nullptr);
      before(*worker);
      driver_->StopAt(std::nullopt, n);
      std::atomic<bool> done = false;
      std::thread running([&] {
        operation(*worker);
        done = true;
      });
      while (!done && !driver_->WaitUntilStopped(In(milliseconds(10)))) {
      }
      const bool held = !done;
      worker->process().Signal(SIGKILL);
      driver_->Continue();
      running.join();
      ExpectOnlyNeighbourLeft();
      if (HasFatalFailure() || HasNonfatalFailure()) return;
      if (!held) break;
    }
    EXPECT_GT(n, 1);
    EXPECT_LT(n, kMostCalls);
  }

  std::unique_ptr<TestWorker> neighbour_;
};

class worker_killed_in_every_state : public Processes {};

TEST_F(worker_killed_in_every_state, Resident) {
  StartCore();
  const auto worker = Spawn();
  worker->process().Signal(SIGKILL);
  ExpectOnlyNeighbourLeft();
}

TEST_F(worker_killed_in_every_state, Asleep) {
  StartCore();
  const auto worker = Spawn();
  ASSERT_THAT(Sleep(Victim()), IsOk());
  worker->process().Signal(SIGKILL);
  ExpectOnlyNeighbourLeft();
}

TEST_F(worker_killed_in_every_state, Allocating) {
  StartCore();
  KillAtEveryCall([](WorkerProcess&) {},
                  [](WorkerProcess& worker) { (void)worker.Allocate("weights", "1MiB", 4); });
}

TEST_F(worker_killed_in_every_state, Sleeping) {
  StartCore();
  KillAtEveryCall([](WorkerProcess&) {}, [&](WorkerProcess&) { (void)Sleep(Victim()); });
}

TEST_F(worker_killed_in_every_state, Waking) {
  StartCore();
  KillAtEveryCall([&](WorkerProcess&) { ASSERT_THAT(Sleep(Victim()), IsOk()); },
                  [&](WorkerProcess&) { (void)Wake(Victim()); });
}

TEST_F(worker_killed_in_every_state, Freeing) {
  StartCore();
  KillAtEveryCall([](WorkerProcess&) {}, [](WorkerProcess& worker) { (void)worker.Ask("free 1"); });
}

TEST_F(Processes, sleep_answers_after_memory_is_free) {
  StartCore();
  const auto worker = WorkerProcess::Connect(directory_ + "/worker.sock", "victim");
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "30MiB", 1), IsOk());
  ASSERT_THAT((*worker)->Allocate("kv_cache", "30MiB", 2), IsOk());
  for (int cycle = 0; cycle < 20; ++cycle) {
    const Bytes free_before = device_->GetMemoryInfo()->free;
    const auto slept = Sleep(Victim());
    ASSERT_THAT(slept, IsOk());
    EXPECT_EQ(device_->GetMemoryInfo()->free, free_before + slept->front().device);
    // Whoever asked for the sleep takes all of it at once.
    ASSERT_THAT(neighbour_->Allocate("trainer", MiB(60), 3), IsOk());
    ASSERT_THAT(neighbour_->Free(1), IsOk());
    ASSERT_THAT(Wake(Victim()), IsOk());
  }
  EXPECT_THAT((*worker)->Ask("check 1 1"), IsOk());
}

TEST_F(Processes, AnErrorReachesACallerWhoseDeadlineIsShort) {
  StartCore(seconds(20));
  const auto worker = Spawn();
  worker->process().Signal(SIGSTOP);
  const auto slept = Sleep(Victim(), 1, milliseconds(300));
  EXPECT_THAT(slept, HasReason("WORKER_SILENT"));
  EXPECT_EQ(slept.status().details().count("rollback_pending"), 1u);
  worker->process().Signal(SIGCONT);
  WaitForRest();
  EXPECT_THAT(worker->Ask("check 1 1"), IsOk());
}

TEST_F(Processes, worker_stopped_not_dead) {
  StartCore(seconds(1));
  const auto worker = Spawn();
  worker->process().Signal(SIGSTOP);
  const auto slept = Sleep(Victim());
  EXPECT_THAT(slept, HasReason("WORKER_SILENT"));
  EXPECT_THAT(slept, HasCode(Code::kDeadlineExceeded));
  EXPECT_EQ(slept.status().details().count("rollback_pending"), 1u);
  // The daemon serves on, and says what is wrong with this one.
  EXPECT_THAT(Wake(Victim()), HasReason("ROLLBACK_PENDING"));
  ASSERT_THAT(Sleep(Only(*neighbour_)), IsOk());
  ASSERT_THAT(Wake(Only(*neighbour_)), IsOk());
  bool unknown = false;
  for (const WorkerStats& stats : Usage().workers) unknown = unknown || stats.unknown_attachment;
  EXPECT_TRUE(unknown);
  worker->process().Signal(SIGCONT);
  WaitForRest();
  EXPECT_THAT(worker->Ask("check 1 1"), IsOk());
  EXPECT_THAT(worker->Ask("check 3 3"), IsOk());
  ASSERT_THAT(Sleep(Victim()), IsOk());
  ASSERT_THAT(Wake(Victim()), IsOk());
  EXPECT_THAT(worker->Ask("check 1 1"), IsOk());
  EXPECT_THAT(worker->Ask("checkzero 3"), IsOk());
}

TEST_F(Processes, StoppedDuringAWakeStaysAsleepUntilItGoesOn) {
  StartCore(seconds(1));
  const auto worker = Spawn();
  ASSERT_THAT(Sleep(Victim()), IsOk());
  const Bytes free_before = Usage().budget.free;
  worker->process().Signal(SIGSTOP);
  EXPECT_THAT(Wake(Victim()), HasReason("WORKER_SILENT"));
  worker->process().Signal(SIGCONT);
  WaitForRest();
  EXPECT_EQ(Usage().budget.free, free_before);
  ASSERT_THAT(Wake(Victim()), IsOk());
  EXPECT_THAT(worker->Ask("check 1 1"), IsOk());
  EXPECT_THAT(worker->Ask("check 2 2"), IsOk());
}

TEST_F(Processes, KilledWhileStoppedEndsItsRollBack) {
  StartCore(milliseconds(500));
  const auto worker = Spawn();
  worker->process().Signal(SIGSTOP);
  EXPECT_THAT(Sleep(Victim()), HasReason("WORKER_SILENT"));
  worker->process().Signal(SIGKILL);
  ExpectOnlyNeighbourLeft();
}

TEST_F(Processes, free_at_exit) {
  StartCore();
  const auto worker = Spawn();
  ASSERT_THAT(worker->Ask("exit_freeing"), IsOk());
  const auto status = worker->process().Wait();
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(*status, 0);
  ExpectOnlyNeighbourLeft();
}

TEST_F(Processes, fork_before_connect_works) {
  StartCore();
  const auto worker = WorkerProcess::Start();
  ASSERT_THAT(worker, IsOk());
  ASSERT_THAT((*worker)->Ask("fork_continue"), IsOk());
  ASSERT_THAT((*worker)->Ask("connect driver=host socket=" + directory_ +
                             "/worker.sock name=victim quiesce=guard"),
              IsOk());
  ASSERT_THAT((*worker)->Allocate("weights", "1MiB", 5), IsOk());
  ASSERT_THAT(Sleep(Victim()), IsOk());
  ASSERT_THAT(Wake(Victim()), IsOk());
  EXPECT_THAT((*worker)->Ask("check 1 5"), IsOk());
}

TEST_F(Processes, ComputeGoesOnThroughSleepsOfTheOther) {
  StartCore();
  const auto a = Spawn();
  ASSERT_THAT(a->Ask("work 2"), IsOk());
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(Sleep(Only(*neighbour_)), IsOk());
    ASSERT_THAT(Wake(Only(*neighbour_)), IsOk());
    ASSERT_THAT(Sleep(Victim(), 1), IsOk());
    ASSERT_THAT(Wake(Victim()), IsOk());
    ASSERT_THAT(a->Ask("forget 3"), IsOk());
  }
  EXPECT_THAT(a->Ask("stop_work"), IsOk());
  EXPECT_THAT(a->Ask("check 1 1"), IsOk());
  EXPECT_TRUE(neighbour_->AllHavePattern());
}

}  // namespace
}  // namespace torpor
