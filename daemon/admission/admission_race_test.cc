// Admission against everything that can happen between a measurement of the device and the decision
// that rests on it. The property: whoever holds a draw, or a promise, finds the memory there.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/admission/admission.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

constexpr Bytes kUnit = KiB(64);
constexpr int kUnits = 64;

// A grant on its way: drawn, created, released, returned.
struct Grant {
  Draw draw;
  std::shared_ptr<PhysicalAllocation> allocation;
  enum { kDrawn, kCreated, kMarked, kReleased } stage = kDrawn;
};

class AdmissionRaceTest : public ::testing::Test {
 protected:
  Result<DeviceMemory::Measurement> Measure(DeviceMemory::Accuracy accuracy) {
    Result<DeviceMemory::Measurement> measurement = memory_.Measure(accuracy);
    if (std::function<void()> then = std::exchange(after_measurement_, nullptr)) then();
    return measurement;
  }
  Grant Drawn(int units, const std::string& reservation = "") {
    return {*admission_.DrawDevice(kUnit * units, reservation), nullptr, Grant::kDrawn};
  }
  // One step of a grant's life; false after the last. Creation must work: that is the property.
  bool Advance(Grant& grant) {
    switch (grant.stage) {
      case Grant::kDrawn: {
        auto allocation = memory_.Create(grant.draw.size());
        EXPECT_THAT(allocation, IsOk());
        if (!allocation.ok()) return false;
        grant.allocation = *std::move(allocation);
        grant.stage = Grant::kCreated;
        return true;
      }
      case Grant::kCreated:
        grant.draw.MarkCreated();
        grant.stage = Grant::kMarked;
        return true;
      case Grant::kMarked:
        memory_.Release(std::move(grant.allocation));
        grant.stage = Grant::kReleased;
        return true;
      case Grant::kReleased:
        break;
    }
    grant.draw.Return();
    return false;
  }
  int AvailableUnits() { return static_cast<int>(admission_.Budget()->available / kUnit); }
  std::string Reserve(int units) {
    return admission_.Reserve({"job", {{"all", kUnit * units}}, Bytes(0), seconds(60)})->id;
  }

  std::unique_ptr<HostDriver> driver_ = *HostDriver::CreateDevice({"race", kUnit* kUnits, kUnit});
  DeviceMemory memory_{*driver_};
  ManualClock clock_;
  std::function<void()> after_measurement_;  // runs once, before the decision
  Admission admission_{{}, [this](auto accuracy) { return Measure(accuracy); }, clock_};
};

TEST_F(AdmissionRaceTest, WhatIsCreatedAfterTheMeasurementIsCounted) {
  Grant grant = Drawn(30);
  after_measurement_ = [&] {
    Advance(grant);
    Advance(grant);
  };
  EXPECT_EQ(AvailableUnits(), 34);
}

TEST_F(AdmissionRaceTest, WhatIsCreatedAndNotYetMarkedIsCountedOnce) {
  Grant grant = Drawn(30);
  Advance(grant);
  EXPECT_EQ(AvailableUnits(), 34);
  EXPECT_THAT(admission_.DrawDevice(kUnit * 34, ""), IsOk());
}

TEST_F(AdmissionRaceTest, WhatIsDrawnAfterTheMeasurementIsCounted) {
  Draw draw;
  after_measurement_ = [&] { draw = *admission_.DrawDevice(kUnit * 40, ""); };
  EXPECT_THAT(admission_.DrawDevice(kUnit * 30, ""), HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(AvailableUnits(), 24);
}

TEST_F(AdmissionRaceTest, WhatIsReservedAfterTheMeasurementIsCounted) {
  after_measurement_ = [&] { Reserve(40); };
  EXPECT_THAT(admission_.DrawDevice(kUnit * 30, ""), HasReason("DEVICE_BUDGET_EXHAUSTED"));
}

// Its memory is free, but belongs to the promise in a moment.
TEST_F(AdmissionRaceTest, WhatIsReleasedAndNotYetReturnedIsNotGrantedAgain) {
  const std::string id = Reserve(40);
  Grant grant = Drawn(40, id);
  while (grant.stage != Grant::kReleased) Advance(grant);
  EXPECT_EQ(AvailableUnits(), 24);
  EXPECT_THAT(admission_.DrawDevice(kUnit * 25, ""), HasReason("DEVICE_BUDGET_EXHAUSTED"));
  Advance(grant);
  EXPECT_EQ(AvailableUnits(), 24);
}

// The measurement does not see it free, the promise has it already: that refusal would be false.
TEST_F(AdmissionRaceTest, WhatReturnsToItsPromiseAfterTheMeasurementRefusesNobody) {
  const std::string id = Reserve(40);
  Grant grant = Drawn(40, id);
  while (grant.stage != Grant::kMarked) Advance(grant);
  after_measurement_ = [&] {
    Advance(grant);
    Advance(grant);
  };
  EXPECT_THAT(admission_.DrawDevice(kUnit * 24, ""), IsOk());
}

TEST_F(AdmissionRaceTest, WhatIsGivenBackUnusedAfterTheMeasurementIsFree) {
  Grant grant = Drawn(40);
  after_measurement_ = [&] { grant.draw.Return(); };
  EXPECT_EQ(AvailableUnits(), kUnits);
}

// Any steps of any grants and reservations in between.
TEST_F(AdmissionRaceTest, DrawsAndPromisesNeverExceedTheDevice) {
  std::mt19937 random(11);
  std::vector<Grant> grants;
  std::vector<std::string> reservations;
  const auto any_reservation = [&]() -> std::string {
    if (reservations.empty() || random() % 2 == 0) return "";
    return reservations[random() % reservations.size()];
  };
  int refusals = 0;
  const std::function<void()> step = [&] {
    const Bytes size = kUnit * static_cast<int64_t>(1 + random() % 16);
    switch (random() % 8) {
      case 0:
      case 1: {
        auto draw = admission_.DrawDevice(size, any_reservation());
        if (!draw.ok()) {
          ++refusals;
          return;
        }
        grants.push_back({*std::move(draw), nullptr, Grant::kDrawn});
        return;
      }
      case 2: {
        auto reserved = admission_.Reserve({"job", {{"all", size}}, Bytes(0), seconds(60)});
        if (reserved.ok()) reservations.push_back(reserved->id);
        return;
      }
      case 3:
        if (reservations.empty() || random() % 3 != 0) return;
        EXPECT_THAT(admission_.Release(reservations.back()), IsOk());
        reservations.pop_back();
        return;
      default: {
        if (grants.empty()) return;
        const size_t i = random() % grants.size();
        if (random() % 8 == 0) grants[i].draw.Surrender();
        const bool unused = random() % 16 == 0 && grants[i].stage == Grant::kDrawn;
        if (!unused && Advance(grants[i])) return;
        grants.erase(grants.begin() + static_cast<ptrdiff_t>(i));
      }
    }
  };
  for (int i = 0; i < 4000; ++i) {
    const auto steps = random() % 4;
    after_measurement_ = [&, steps] {
      for (unsigned s = 0; s < steps; ++s) step();
    };
    step();
    after_measurement_ = nullptr;
    Bytes taken{};
    for (const Grant& grant : grants) taken += grant.draw.size();
    for (const ReservationStats& stats : admission_.Reservations()) {
      const Bytes left = stats.device - stats.drawn_device - stats.surrendered_device;
      ASSERT_GE(left, Bytes(0));
      taken += left;
    }
    ASSERT_LE(taken, kUnit * kUnits) << i;
    ASSERT_FALSE(HasFailure()) << i;
  }
  EXPECT_GT(refusals, 100);
  // Everything back: nothing has been lost on the way.
  after_measurement_ = nullptr;
  for (Grant& grant : grants) {
    while (Advance(grant)) {
    }
  }
  for (const std::string& id : reservations) (void)admission_.Release(id);
  EXPECT_EQ(AvailableUnits(), kUnits);
}

TEST_F(AdmissionRaceTest, ManyThreadsNeverRunOutOfWhatTheyWereGranted) {
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &granted] {
      std::mt19937 random(t);
      for (int i = 0; i < 250; ++i) {
        const int units = static_cast<int>(1 + random() % 24);
        std::string id;
        if (random() % 2 == 0) {
          auto reserved =
              admission_.Reserve({"job", {{"all", kUnit * units}}, Bytes(0), seconds(60)});
          if (!reserved.ok()) continue;
          id = reserved->id;
        }
        for (int round = 0; round < 2; ++round) {
          auto draw = admission_.DrawDevice(kUnit * units, id);
          // A promise is kept, also for bytes that came back to it.
          EXPECT_TRUE(draw.ok() || id.empty()) << draw.status().ToString();
          if (!draw.ok()) continue;
          ++granted;
          Grant grant{*std::move(draw), nullptr, Grant::kDrawn};
          while (Advance(grant)) {
          }
        }
        if (!id.empty()) {
          EXPECT_THAT(admission_.Release(id), IsOk());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(granted, 0);
  EXPECT_EQ(AvailableUnits(), kUnits);
}

}  // namespace
}  // namespace torpor
