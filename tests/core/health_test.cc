// The health of a whole daemon without gRPC, with a driver that stops, fails, and goes on.

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/health/health_monitor.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "lib/cuda/fault_driver.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

class Health : public CoreFixture {
 protected:
  void Watch() {
    HealthMonitor::Options options;
    options.check_interval = milliseconds(1);
    options.probe_interval = milliseconds(1);
    options.margin = Duration::zero();
    monitor_ = std::make_unique<HealthMonitor>(options, [](const Status&) {});
    ASSERT_THAT(monitor_->Start(*driver_, [this](TimePoint by) { return core_->MostOverdue(by); }),
                IsOk());
  }
  // Until the reason is this.
  void Await(const std::string& reason) {
    const TimePoint until = In(seconds(60));
    while (monitor_->status().reason() != reason) {
      ASSERT_LT(std::chrono::steady_clock::now(), until)
          << reason << ", but " << monitor_->status().ToString();
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  std::unique_ptr<HealthMonitor> monitor_;
};

TEST_F(Health, health_says_not_serving_when_stuck) {
  Start();
  const auto worker = Connect("model");
  ASSERT_THAT(worker->Allocate("weights", MiB(4), 1), IsOk());
  // So that nothing has to be pinned any more.
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  TestWorker::Fill(worker->segments[0]);
  Watch();
  driver_->StopAt(CallKind::kDigest, 1);
  auto sleep = std::async(std::launch::async, [&] { return Sleep(All(), 1, seconds(3)); });
  ASSERT_TRUE(driver_->WaitUntilStopped(In(seconds(60))));
  Await("OPERATION_STUCK");
  EXPECT_EQ(monitor_->status().details().at("name"), "model");
  EXPECT_GE(std::stol(monitor_->status().details().at("overdue_ms")), 0);
  driver_->Continue();
  EXPECT_THAT(sleep.get(), HasCode(Code::kDeadlineExceeded));
  Await("");
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(Health, AnOperationWithinItsDeadlineIsNotStuck) {
  Start();
  const auto worker = Connect("model");
  ASSERT_THAT(worker->Allocate("weights", MiB(4), 1), IsOk());
  Watch();
  driver_->StopAt(CallKind::kCopyToHost, 1);
  auto sleep = std::async(std::launch::async, [&] { return Sleep(All(), 1, seconds(300)); });
  ASSERT_TRUE(driver_->WaitUntilStopped(In(seconds(60))));
  const int64_t probes = driver_->Calls(CallKind::kGetMemoryInfo);
  while (driver_->Calls(CallKind::kGetMemoryInfo) < probes + 50) std::this_thread::yield();
  EXPECT_THAT(monitor_->status(), IsOk());
  driver_->Continue();
  EXPECT_THAT(sleep.get(), IsOk());
}

TEST_F(Health, ALostGpuWhileWorkersAreConnected) {
  Start();
  const auto worker = Connect("model");
  ASSERT_THAT(worker->Allocate("weights", MiB(4), 1), IsOk());
  Watch();
  for (int i = 1; i <= 20'000; ++i) {
    driver_->FailNth(CallKind::kGetMemoryInfo, i, Internal("CUDA_ERROR_DEVICE_UNAVAILABLE", "no"));
  }
  Await("GPU_LOST");
  driver_->ClearFaults();
  Await("");
  EXPECT_THAT(Sleep(All()), IsOk());
  EXPECT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

}  // namespace
}  // namespace torpor
