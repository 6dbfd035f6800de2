#include "lib/cuda/timed_driver.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "lib/cuda/call_kind.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

uint64_t CallsOf(const TimedDriver::Stats& stats) {
  return std::accumulate(stats.calls.begin(), stats.calls.end(), uint64_t{0});
}

class TimedDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    auto host = HostDriver::CreateDevice({"timed", MiB(64), MiB(2)});
    ASSERT_THAT(host, IsOk());
    host_ = *std::move(host);
    faults_ = std::make_unique<FaultDriver>(*host_);
    driver_ = std::make_unique<TimedDriver>(*faults_);
  }
  std::unique_ptr<Driver> host_;
  std::unique_ptr<FaultDriver> faults_;
  std::unique_ptr<TimedDriver> driver_;
};

TEST_F(TimedDriverTest, CountsByKind) {
  const auto handle = driver_->Create(MiB(2));
  ASSERT_THAT(handle, IsOk());
  ASSERT_THAT(driver_->GetMemoryInfo(), IsOk());
  ASSERT_THAT(driver_->GetMemoryInfo(), IsOk());
  ASSERT_THAT(driver_->Release(*handle), IsOk());
  EXPECT_EQ(CallsOf(driver_->stats(CallKind::kCreate)), 1u);
  EXPECT_EQ(CallsOf(driver_->stats(CallKind::kGetMemoryInfo)), 2u);
  EXPECT_EQ(CallsOf(driver_->stats(CallKind::kRelease)), 1u);
  EXPECT_EQ(CallsOf(driver_->stats(CallKind::kMap)), 0u);
  EXPECT_GT(driver_->stats(CallKind::kCreate).total, Duration::zero());
  EXPECT_EQ(driver_->stats(CallKind::kCreate).errors, 0u);
}

TEST_F(TimedDriverTest, CountsErrorsAmongTheCalls) {
  faults_->FailNth(CallKind::kCreate, 1, Internal("CUDA_ERROR_UNKNOWN", "no"));
  EXPECT_THAT(driver_->Create(MiB(2)), HasReason("CUDA_ERROR_UNKNOWN"));
  EXPECT_EQ(CallsOf(driver_->stats(CallKind::kCreate)), 1u);
  EXPECT_EQ(driver_->stats(CallKind::kCreate).errors, 1u);
}

}  // namespace
}  // namespace torpor
