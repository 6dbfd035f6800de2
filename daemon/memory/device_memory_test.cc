#include "daemon/memory/device_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

class DeviceMemoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"device", MiB(64), MiB(2)});
  FaultDriver driver_{*host_};
  DeviceMemory memory_{driver_};
};

TEST_F(DeviceMemoryTest, CountsWhatItCreatesAndReleases) {
  auto first = *memory_.Create(MiB(4));
  auto second = *memory_.Create(MiB(8));
  memory_.Release(std::move(first));
  const auto measurement = *memory_.Measure();
  EXPECT_EQ(measurement.total, MiB(64));
  EXPECT_EQ(measurement.free, MiB(56));
  EXPECT_EQ(measurement.created, MiB(12));
  EXPECT_EQ(measurement.released, MiB(4));
  EXPECT_EQ(measurement.resident(), MiB(8));
  EXPECT_EQ(measurement.other(), MiB(0));
  memory_.Release(std::move(second));
  EXPECT_EQ(memory_.Measure()->resident(), MiB(0));
}

TEST_F(DeviceMemoryTest, AFailedCreationCountsNothing) {
  EXPECT_THAT(memory_.Create(MiB(66)), HasReason("DEVICE_OUT_OF_MEMORY"));
  EXPECT_EQ(memory_.Measure()->created, MiB(0));
}

TEST_F(DeviceMemoryTest, WhatOthersTakeIsTheRemainder) {
  const MemoryHandle other = *host_->Create(MiB(10));
  auto own = *memory_.Create(MiB(4));
  EXPECT_EQ(memory_.Measure()->other(), MiB(10));
  memory_.Release(std::move(own));
  EXPECT_THAT(host_->Release(other), IsOk());
}

// Memory that the daemon has released, and a worker still maps, is not the daemon's any more.
TEST_F(DeviceMemoryTest, WhatAWorkerStillHoldsIsTheRemainder) {
  auto own = *memory_.Create(MiB(4));
  UniqueFd held = *own->Export();
  memory_.Release(std::move(own));
  EXPECT_EQ(memory_.Measure()->resident(), MiB(0));
  EXPECT_EQ(memory_.Measure()->other(), MiB(4));
  held.Reset();
  EXPECT_EQ(memory_.Measure()->other(), MiB(0));
}

TEST_F(DeviceMemoryTest, TheRemainderIsNeverNegative) {
  DeviceMemory::Measurement measurement;
  measurement.total = MiB(10);
  measurement.free = MiB(8);
  measurement.created = MiB(4);
  EXPECT_EQ(measurement.other(), MiB(0));
}

TEST_F(DeviceMemoryTest, AMeasurementThatFailsIsTold) {
  driver_.FailNth(CallKind::kGetMemoryInfo, 1, Internal("FAULT", "injected"));
  EXPECT_THAT(memory_.Measure(), HasReason("FAULT"));
}

// What is free is never counted as resident as well, whoever creates and releases meanwhile.
TEST_F(DeviceMemoryTest, MeasurementsNeverPromiseTooMuchUnderConcurrentChange) {
  std::atomic<int> running{3};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto allocation = memory_.Create(MiB(2));
        ASSERT_THAT(allocation, IsOk());
        memory_.Release(*std::move(allocation));
      }
      --running;
    });
  }
  do {
    const auto measurement = *memory_.Measure();
    EXPECT_LE(measurement.free + measurement.resident(), measurement.total);
  } while (running > 0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_.Measure()->resident(), MiB(0));
  EXPECT_EQ(memory_.Measure()->free, MiB(64));
}

TEST_F(DeviceMemoryTest, AMeasurementDoesNotWaitForACreation) {
  auto own = *memory_.Create(MiB(4));
  driver_.StopAt(CallKind::kCreate, 1);
  std::thread creating([&] { EXPECT_THAT(memory_.Create(MiB(8)), IsOk()); });
  ASSERT_TRUE(driver_.WaitUntilStopped(Clock::Real().Now() + seconds(20)));
  EXPECT_EQ(memory_.Measure()->resident(), MiB(4));
  driver_.Continue();
  creating.join();
}

TEST_F(DeviceMemoryTest, ASettledMeasurementIsExactWhateverIsCreatedMeanwhile) {
  std::atomic<bool> running{true};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (running) memory_.Release(*memory_.Create(MiB(2)));
    });
  }
  for (int i = 0; i < 200; ++i) {
    const auto measurement = *memory_.Measure(DeviceMemory::Accuracy::kSettled);
    EXPECT_EQ(measurement.unsettled, MiB(0));
    EXPECT_EQ(measurement.free + measurement.resident(), measurement.total);
  }
  running = false;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DeviceMemoryTest, ASettledMeasurementGivesUpOnACallThatHangs) {
  driver_.StopAt(CallKind::kCreate, 1);
  std::thread creating([&] { EXPECT_THAT(memory_.Create(MiB(8)), IsOk()); });
  ASSERT_TRUE(driver_.WaitUntilStopped(Clock::Real().Now() + seconds(20)));
  EXPECT_EQ(memory_.Measure(DeviceMemory::Accuracy::kSettled)->unsettled, MiB(8));
  auto other = memory_.Create(MiB(2));  // is not held back for good
  EXPECT_THAT(other, IsOk());
  driver_.Continue();
  creating.join();
}

}  // namespace
}  // namespace torpor
