#include "daemon/health/health_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/memory/inventory.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "lib/cuda/call_kind.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

using testing::ElementsAre;

constexpr int kMany = 20'000;

class HealthMonitorTest : public testing::Test {
 protected:
  void SetUp() override {
    auto host = HostDriver::CreateDevice({"health", MiB(64), MiB(2)});
    ASSERT_THAT(host, IsOk());
    driver_ = std::make_unique<FaultDriver>(*std::move(host));
    options_.probe_interval = milliseconds(1);
    options_.check_interval = milliseconds(1);
    options_.margin = Duration::zero();
  }
  // Stopped calls would hold up the monitor's end.
  void TearDown() override { driver_->Continue(); }

  void Make() {
    monitor_ = std::make_unique<HealthMonitor>(options_, [this](const Status& status) {
      MutexLock lock(mutex_);
      told_.push_back(status.reason());
      changed_.NotifyAll();
    });
  }
  void Start() {
    Make();
    ASSERT_THAT(monitor_->Start(*driver_,
                                [this](TimePoint by) -> std::optional<OverdueOperation> {
                                  MutexLock lock(mutex_);
                                  if (!stuck_.has_value() || stuck_->deadline > by) return {};
                                  return stuck_;
                                }),
                IsOk());
  }
  // Until the last that was told is `reason`.
  void Await(const std::string& reason) {
    const TimePoint until = Clock::Real().Now() + seconds(60);
    MutexLock lock(mutex_);
    while (told_.empty() || told_.back() != reason) {
      if (!changed_.WaitUntil(mutex_, until) && Clock::Real().Now() >= until) {
        FAIL() << "not " << reason;
      }
    }
  }
  void AwaitProbes(int64_t more) {
    const int64_t enough = driver_->Calls(CallKind::kGetMemoryInfo) + more;
    while (driver_->Calls(CallKind::kGetMemoryInfo) < enough) std::this_thread::yield();
  }
  // From the next probe on, without one that gets through between.
  void FailProbes(const Status& status) {
    driver_->StopAt(CallKind::kGetMemoryInfo, 1);
    ASSERT_TRUE(driver_->WaitUntilStopped(Clock::Real().Now() + seconds(60)));
    for (int i = 1; i <= kMany; ++i) driver_->FailNth(CallKind::kGetMemoryInfo, i, status);
    driver_->Continue();
  }
  std::vector<std::string> told() {
    MutexLock lock(mutex_);
    return told_;
  }
  void Stuck(std::optional<OverdueOperation> stuck) {
    MutexLock lock(mutex_);
    stuck_ = std::move(stuck);
  }

  HealthMonitor::Options options_;
  std::unique_ptr<FaultDriver> driver_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> told_ GUARDED_BY(mutex_);
  std::optional<OverdueOperation> stuck_ GUARDED_BY(mutex_);
  std::unique_ptr<HealthMonitor> monitor_;
};

TEST_F(HealthMonitorTest, NotServingUntilItHasStarted) {
  Make();
  EXPECT_THAT(monitor_->status(), HasReason("DAEMON_STARTING"));
  EXPECT_THAT(told(), ElementsAre());
  Start();
  EXPECT_THAT(monitor_->status(), IsOk());
  EXPECT_THAT(told(), ElementsAre(""));
}

TEST_F(HealthMonitorTest, ALostGpuAndBack) {
  Start();
  FailProbes(Internal("CUDA_ERROR_ECC_UNCORRECTABLE", "ecc"));
  Await("GPU_LOST");
  EXPECT_EQ(monitor_->status().code(), Code::kUnavailable);
  EXPECT_EQ(monitor_->status().details().at("cause"), "CUDA_ERROR_ECC_UNCORRECTABLE");
  EXPECT_TRUE(HealthMonitor::NeedsRestart(monitor_->status()));
  driver_->ClearFaults();
  Await("");
  EXPECT_THAT(told(), ElementsAre("", "GPU_LOST", ""));
}

TEST_F(HealthMonitorTest, AnErrorThatPassesIsNone) {
  Start();
  AwaitProbes(1);
  driver_->FailNth(CallKind::kGetMemoryInfo, 1, Internal("CUDA_ERROR_UNKNOWN", "once"));
  driver_->FailNth(CallKind::kGetMemoryInfo, 2, Internal("CUDA_ERROR_UNKNOWN", "and again"));
  AwaitProbes(20);
  EXPECT_THAT(told(), ElementsAre(""));
  FailProbes(Internal("CUDA_ERROR_UNKNOWN", "always"));
  Await("GPU_LOST");
  driver_->ClearFaults();
  Await("");
}

TEST_F(HealthMonitorTest, ADriverThatDoesNotReturn) {
  options_.probe_bound = milliseconds(20);
  Start();
  driver_->StopAt(CallKind::kGetMemoryInfo, 1);
  Await("DRIVER_SILENT");
  EXPECT_GE(std::stol(monitor_->status().details().at("since_ms")), 20);
  driver_->Continue();
  Await("");
}

TEST_F(HealthMonitorTest, health_says_not_serving_when_stuck) {
  options_.margin = seconds(5);
  Start();
  // Late, but not by more than the margin.
  Stuck(OverdueOperation{WorkerId(3), "model", OperationId(7),
                         Clock::Real().Now() - milliseconds(1)});
  AwaitProbes(20);
  EXPECT_THAT(told(), ElementsAre(""));
  Stuck(OverdueOperation{WorkerId(3), "model", OperationId(7), Clock::Real().Now() - seconds(6)});
  Await("OPERATION_STUCK");
  const Status status = monitor_->status();
  EXPECT_EQ(status.details().at("worker"), "w-3");
  EXPECT_EQ(status.details().at("name"), "model");
  EXPECT_EQ(status.details().at("operation"), "op-7");
  EXPECT_GE(std::stol(status.details().at("overdue_ms")), 6000);
  EXPECT_FALSE(HealthMonitor::NeedsRestart(status));
  Stuck(std::nullopt);
  Await("");
}

TEST_F(HealthMonitorTest, TheEndIsTheLastWord) {
  Start();
  monitor_->End(Unavailable("DAEMON_STOPPING", "the daemon is stopping"));
  EXPECT_THAT(told(), ElementsAre("", "DAEMON_STOPPING"));
  Stuck(OverdueOperation{WorkerId(3), "model", OperationId(7), Clock::Real().Now() - seconds(6)});
  AwaitProbes(20);
  EXPECT_THAT(monitor_->status(), HasReason("DAEMON_STOPPING"));
  EXPECT_THAT(told(), ElementsAre("", "DAEMON_STOPPING"));
}

}  // namespace
}  // namespace torpor
