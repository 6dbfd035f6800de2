// What Usage and refusals say while memory is created and released: nobody has taken anything from
// anyone, whatever the moment of the measurement.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/admission/admission.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

constexpr Bytes kUnit = KiB(64);
constexpr int kUnits = 64;

class MeasurementTest : public ::testing::Test {
 protected:
  Result<DeviceMemory::Measurement> Measure(DeviceMemory::Accuracy accuracy) {
    if (const auto instead = std::exchange(measure_instead_, nullptr)) return instead();
    Result<DeviceMemory::Measurement> measurement = memory_.Measure(accuracy);
    if (std::function<void()> then = std::exchange(after_measurement_, nullptr)) then();
    return measurement;
  }
  void Reserve(int units) {
    ReservationSpec spec;
    spec.name = "job";
    spec.parts = {{"all", kUnit * units}};
    spec.ttl = seconds(60);
    ASSERT_THAT(admission_.Reserve(spec), IsOk());
  }
  Draw Create(int units, std::shared_ptr<PhysicalAllocation>& allocation) {
    Draw draw = *admission_.DrawDevice(kUnit * units, "");
    allocation = *memory_.Create(kUnit * units);
    draw.MarkCreated();
    return draw;
  }
  // Runs `check` while `call` is held in the driver's next call of `kind`.
  void While(CallKind kind, const std::function<void()>& call, const std::function<void()>& check) {
    driver_.StopAt(kind, 1);
    std::thread caller(call);
    EXPECT_TRUE(driver_.WaitUntilStopped(Clock::Real().Now() + seconds(20)));
    check();
    driver_.Continue();
    caller.join();
  }

  const std::unique_ptr<HostDriver> host_ =
      *HostDriver::CreateDevice({"measured", kUnit* kUnits, kUnit});
  FaultDriver driver_{*host_};
  DeviceMemory memory_{driver_};
  ManualClock clock_;
  // Each runs once: before the decision, or instead of the measurement.
  std::function<void()> after_measurement_;
  std::function<DeviceMemory::Measurement()> measure_instead_;
  Admission admission_{{}, [this](auto accuracy) { return Measure(accuracy); }, clock_};
};

TEST_F(MeasurementTest, PromisesOfWhatCameFreeAfterTheMeasurementAreKept) {
  std::shared_ptr<PhysicalAllocation> allocation;
  Draw draw = Create(32, allocation);
  after_measurement_ = [&] {
    memory_.Release(std::move(allocation));
    draw.Return();
    Reserve(48);
  };
  EXPECT_EQ(admission_.Budget()->overcommitted, Bytes(0));
}

TEST_F(MeasurementTest, NothingIsBrokenWhileMemoryIsCreated) {
  Reserve(32);
  Draw draw = *admission_.DrawDevice(kUnit * 32, "");
  std::shared_ptr<PhysicalAllocation> allocation;
  While(
      CallKind::kCreate, [&] { allocation = *memory_.Create(draw.size()); },
      [&] { EXPECT_EQ(admission_.Budget()->overcommitted, Bytes(0)); });
  draw.MarkCreated();
  EXPECT_EQ(admission_.Budget()->overcommitted, Bytes(0));
  memory_.Release(std::move(allocation));
}

TEST_F(MeasurementTest, NothingIsBrokenWhileMemoryIsReleased) {
  Reserve(32);
  std::shared_ptr<PhysicalAllocation> allocation;
  const Draw draw = Create(32, allocation);
  While(
      CallKind::kRelease, [&] { memory_.Release(std::move(allocation)); },
      [&] { EXPECT_EQ(admission_.Budget()->overcommitted, Bytes(0)); });
}

// The creation is seen in the device's free memory, and is not counted yet.
TEST_F(MeasurementTest, ACreationDuringTheMeasurementRefusesNobody) {
  Draw draw = *admission_.DrawDevice(kUnit * 32, "");
  std::shared_ptr<PhysicalAllocation> allocation;
  measure_instead_ = [&] {
    DeviceMemory::Measurement measurement = *memory_.Measure();
    allocation = *memory_.Create(draw.size());
    draw.MarkCreated();
    measurement.free = memory_.Measure()->free;
    measurement.unsettled = draw.size();
    return measurement;
  };
  EXPECT_THAT(admission_.DrawDevice(kUnit * 32, ""), IsOk());
  memory_.Release(std::move(allocation));
}

// As when all sleeping workers wake at once, and together just fit.
TEST_F(MeasurementTest, CreationsOfOthersRefuseNobodyWhoFits) {
  constexpr int kThreads = 4;
  constexpr int kEach = kUnits / kThreads;
  struct Woken {
    std::vector<Draw> draws;
    std::vector<std::shared_ptr<PhysicalAllocation>> allocations;
  };
  for (int round = 0; round < 50 && !HasFailure(); ++round) {
    std::vector<Woken> woken(kThreads);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (Woken& one : woken) {
      threads.emplace_back([&] {
        Result<Draw> draw = admission_.DrawDevice(kUnit * kEach, "");
        ASSERT_THAT(draw, IsOk());
        for (int i = 0; i < kEach; ++i) {
          one.draws.push_back(draw->Split(kUnit));
          one.allocations.push_back(*memory_.Create(kUnit));
          one.draws.back().MarkCreated();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Woken& one : woken) {
      for (auto& allocation : one.allocations) memory_.Release(std::move(allocation));
    }
  }
}

}  // namespace
}  // namespace torpor
