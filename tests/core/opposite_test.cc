// Two worker processes, one put to sleep while the other wakes, with the daemon held up at each of
// its driver calls for one of them.

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

using Outcomes = Result<std::vector<WorkerOutcome>>;

class a_neighbour_sleeps_while_one_wakes : public CoreFixture {
 protected:
  void SetUp() override {
    Setup setup;
    setup.device = MiB(2);
    setup.worker_deadline = seconds(20);
    Start(setup);
    sleeper_ = Spawn("sleeper", 1);
    waker_ = Spawn("waker", 2);
    ASSERT_TRUE(sleeper_ != nullptr && waker_ != nullptr);
  }
  std::unique_ptr<WorkerProcess> Spawn(const std::string& name, int seed) {
    auto worker = WorkerProcess::Connect(directory_ + "/worker.sock", name);
    EXPECT_THAT(worker, IsOk());
    if (!worker.ok()) return nullptr;
    EXPECT_THAT((*worker)->Allocate("weights", "192KiB", seed), IsOk());
    EXPECT_THAT((*worker)->Allocate("kv_cache", "128KiB", seed + 10), IsOk());
    EXPECT_THAT((*worker)->Ask("forget 2"), IsOk());
    EXPECT_THAT((*worker)->Ask("work 1"), IsOk());
    return *std::move(worker);
  }
  static Selector Named(const std::string& name) {
    Selector selector;
    selector.workers = {name};
    return selector;
  }
  Outcomes SleepOne() { return Sleep(Named("sleeper")); }
  Outcomes WakeOther() { return Wake(Named("waker")); }
  static bool Ready(const std::future<Outcomes>& outcomes, Duration patience) {
    return outcomes.wait_for(patience) == std::future_status::ready;
  }

  // Holds `held` at its first, second, ... driver call, while `other` has to get through, until it
  // ends without being held.
  void HoldAtEveryCall(const std::function<Outcomes()>& held,
                       const std::function<Outcomes()>& other) {
    constexpr int kMostCalls = 200;
    int n = 1;
    for (bool stopped = true; stopped && n <= kMostCalls; ++n) {
      SCOPED_TRACE("held at driver call " + std::to_string(n));
      ASSERT_THAT(Wake(Named("sleeper")), IsOk());
      ASSERT_THAT(Sleep(Named("waker")), IsOk());
      driver_->StopAt(std::nullopt, n);
      auto first = std::async(std::launch::async, held);
      stopped = false;
      while (!stopped && !Ready(first, milliseconds(0))) {
        stopped = driver_->WaitUntilStopped(In(milliseconds(5)));
      }
      if (!stopped) driver_->Continue();  // it was not reached, and is not for the other
      auto second = std::async(std::launch::async, other);
      EXPECT_TRUE(Ready(second, seconds(15))) << "the neighbour was held up, too";
      EXPECT_EQ(Ready(first, milliseconds(0)), !stopped);
      driver_->Continue();
      EXPECT_THAT(first.get(), IsOk());
      EXPECT_THAT(second.get(), IsOk());
      EXPECT_THAT(waker_->Ask("check 1 2"), IsOk());
      EXPECT_THAT(waker_->Ask("checkzero 2"), IsOk());
      EXPECT_EQ(Usage().budget.resident, KiB(320));
      ExpectBooksAgree();
      if (HasFailure()) return;
    }
    EXPECT_GT(n, 5);
    EXPECT_LE(n, kMostCalls);
    ASSERT_THAT(Wake(Named("sleeper")), IsOk());
    EXPECT_THAT(sleeper_->Ask("check 1 1"), IsOk());
    for (WorkerProcess* worker : {sleeper_.get(), waker_.get()}) {
      EXPECT_THAT(worker->Ask("stop_work"), IsOk());
      EXPECT_THAT(worker->Ask("iterations"), IsOk());
    }
  }

  std::unique_ptr<WorkerProcess> sleeper_;
  std::unique_ptr<WorkerProcess> waker_;
};

TEST_F(a_neighbour_sleeps_while_one_wakes, SleepHeld) {
  HoldAtEveryCall([this] { return SleepOne(); }, [this] { return WakeOther(); });
}

TEST_F(a_neighbour_sleeps_while_one_wakes, WakeHeld) {
  HoldAtEveryCall([this] { return WakeOther(); }, [this] { return SleepOne(); });
}

}  // namespace
}  // namespace torpor
