// Every driver call of Allocate, Free, Sleep and WakeUp is made to fail once, in the daemon and in
// the worker: the operation ends in what was asked for or with everything as it was, nothing leaks,
// no byte is lost, and the next try works.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

enum class Side { kDaemon, kWorker };

class FaultSweep : public CoreFixture, public ::testing::WithParamInterface<Side> {
 protected:
  void SetUp() override {
    Setup setup;
    setup.device = MiB(16);
    setup.host_pool = MiB(16);
    Start(setup);
    worker_ = Connect("a");
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_THAT(worker_->Allocate("weights", KiB(192), 1 + i), IsOk());
    }
    ASSERT_THAT(worker_->Allocate("kv_cache", KiB(128), 9), IsOk());
    // The first cycle pins the pool and makes the daemon's mappings.
    ASSERT_THAT(Sleep(All()), IsOk());
    ASSERT_THAT(Wake(All()), IsOk());
    Refill();
  }

  FaultDriver& faults() { return GetParam() == Side::kDaemon ? *driver_ : *worker_->faults; }

  void Refill() {
    for (TestWorker::Segment& segment : worker_->segments) {
      ++segment.seed;
      TestWorker::Fill(segment);
    }
  }

  // Runs `operation` with its first, second, ... driver call failing, until no call is left to
  // fail. `before` and `after` run without a fault.
  void Sweep(const std::function<void()>& before, const std::function<Status()>& operation,
             const std::function<void(bool succeeded)>& after,
             const Status& fault = Internal("INJECTED_FAULT", "made to fail")) {
    constexpr int kMostCalls = 300;
    int failures = 0;
    int n = 1;
    for (; n <= kMostCalls; ++n) {
      SCOPED_TRACE("driver call " + std::to_string(n) + " fails");
      before();
      WaitForRest();
      faults().FailNth(std::nullopt, n, fault);
      const Status status = operation();
      const bool reached = faults().ClearFaults() == 0;
      WaitForRest();
      if (!status.ok()) ++failures;
      after(status.ok());
      ExpectBooksAgree();
      if (HasFatalFailure() || HasNonfatalFailure()) return;
      if (!reached) break;
    }
    EXPECT_LT(n, kMostCalls);
    RecordProperty("driver_calls", n - 1);
    RecordProperty("failed_operations", failures);
  }

  std::unique_ptr<TestWorker> worker_;
};

TEST_P(FaultSweep, Sleep) {
  Sweep(
      [&] {
        ASSERT_THAT(Wake(All()), IsOk());
        Refill();
      },
      [&] { return CoreFixture::Sleep(All()).status(); },
      [&](bool succeeded) {
        EXPECT_EQ(Stats(*worker_, "weights").resident, succeeded ? Bytes(0) : KiB(576));
        EXPECT_EQ(Stats(*worker_, "weights").moving, 0);
        if (!succeeded) {
          EXPECT_TRUE(worker_->AllHavePattern());
          EXPECT_EQ(Usage().pool.used, Bytes(0));
        }
        ASSERT_THAT(CoreFixture::Sleep(All()), IsOk());
        ASSERT_THAT(Wake(All()), IsOk());
        EXPECT_TRUE(worker_->AllHavePattern("weights"));
      });
}

class WakeFaultSweep : public FaultSweep {
 protected:
  void SweepWake(const Status& fault) {
    Sweep([&] { ASSERT_THAT(CoreFixture::Sleep(All()), IsOk()); },
          [&] { return Wake(All()).status(); },
          [&](bool succeeded) {
            EXPECT_EQ(Stats(*worker_, "weights").resident, succeeded ? KiB(576) : Bytes(0));
            EXPECT_EQ(Stats(*worker_, "weights").moving, 0);
            ASSERT_THAT(Wake(All()), IsOk());
            EXPECT_TRUE(worker_->AllHavePattern("weights"));
            EXPECT_TRUE(TestWorker::IsZero(worker_->segments[3]));
          },
          fault);
  }
};

TEST_P(WakeFaultSweep, WakeUp) { SweepWake(Internal("INJECTED_FAULT", "made to fail")); }

TEST_P(WakeFaultSweep, wake_without_room_leaves_it_asleep) {
  SweepWake(ResourceExhausted("DEVICE_OUT_OF_MEMORY", "made to fail"));
}

TEST_P(FaultSweep, AllocateAndFree) {
  Sweep([] {},
        [&] {
          const size_t before = worker_->segments.size();
          Status allocated = worker_->Allocate("weights", KiB(128), 77);
          if (!allocated.ok()) return allocated;
          EXPECT_TRUE(TestWorker::HasPattern(worker_->segments.back()));
          return worker_->Free(before);
        },
        [&](bool) {
          EXPECT_EQ(Stats(*worker_, "weights").segments, 3);
          EXPECT_TRUE(worker_->AllHavePattern("weights"));
          // The next allocation works, and is gone again.
          ASSERT_THAT(worker_->Allocate("weights", KiB(128), 78), IsOk());
          EXPECT_TRUE(TestWorker::HasPattern(worker_->segments.back()));
          ASSERT_THAT(worker_->Free(worker_->segments.size() - 1), IsOk());
          EXPECT_EQ(Stats(*worker_, "weights").resident, KiB(576));
        });
}

std::string SideName(const ::testing::TestParamInfo<Side>& info) {
  return info.param == Side::kDaemon ? "Daemon" : "Worker";
}

INSTANTIATE_TEST_SUITE_P(Sides, FaultSweep, ::testing::Values(Side::kDaemon, Side::kWorker),
                         SideName);
INSTANTIATE_TEST_SUITE_P(Sides, WakeFaultSweep, ::testing::Values(Side::kDaemon, Side::kWorker),
                         SideName);

}  // namespace
}  // namespace torpor
