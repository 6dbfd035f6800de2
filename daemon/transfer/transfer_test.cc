#include "daemon/transfer/transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "lib/cuda/owners.h"

namespace torpor {
namespace {

Status GoOn() { return Status::Ok(); }

// Gives steps from a list.
class StepList final : public StepSource {
 public:
  explicit StepList(std::vector<CopyStep> steps) : steps_(std::move(steps)) {}
  Result<Next> NextStep(bool /*may_block*/, CopyStep& step) override {
    if (next_ == steps_.size()) return Next::kEnd;
    step = steps_[next_++];
    return Next::kStep;
  }

 private:
  const std::vector<CopyStep> steps_;
  size_t next_ = 0;
};

class TransferEngineTest : public ::testing::Test {
 protected:
  static constexpr int kParts = 8;
  static constexpr Bytes kPart = MiB(4);

  TransferEngineTest() : host_(kPart.size() * kParts), back_(host_.size()) {
    for (int i = 0; i < kParts; ++i) {
      auto mapping =
          *ScopedMapping::Create(driver_, *AddressReservation::Create(driver_, kPart), Bytes(0),
                                 *PhysicalAllocation::Create(driver_, kPart), Access::kReadWrite);
      mappings_.push_back(std::move(mapping));
    }
    std::mt19937_64 random(1);
    for (size_t i = 0; i < host_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&host_[i], &word, sizeof word);
    }
  }

  // A step for each part; not merged, so that there is something to interrupt.
  std::vector<CopyStep> Steps(std::vector<std::byte>& host) {
    std::vector<CopyStep> steps;
    steps.reserve(kParts);
    for (int i = 0; i < kParts; ++i) {
      steps.push_back({mappings_[i]->address(), &host[kPart.size() * i], kPart});
    }
    return steps;
  }
  Status ToHost(const std::vector<CopyStep>& steps,
                const TransferEngine::Interrupt& interrupt = GoOn) {
    StepList list(steps);
    return engine_->ToHost(list, 0, interrupt);
  }
  Status ToDevice(const std::vector<CopyStep>& steps,
                  const TransferEngine::Interrupt& interrupt = GoOn) {
    StepList list(steps);
    return engine_->ToDevice(list, 0, interrupt);
  }
  // Unmapped memory makes a copy that is still running fail, and is what follows an error.
  void UnmapAll() { mappings_.clear(); }

  std::unique_ptr<HostDriver> host_driver_ =
      *HostDriver::CreateDevice({"transfer", MiB(64), MiB(2)});
  FaultDriver driver_{*host_driver_};
  std::vector<std::byte> host_;
  std::vector<std::byte> back_;
  std::vector<std::shared_ptr<ScopedMapping>> mappings_;
  std::unique_ptr<TransferEngine> engine_ = *TransferEngine::Create(driver_);
  const Status fault_ = Internal("FAULT", "injected");
};

TEST_F(TransferEngineTest, BytesSurviveTheWayThereAndBack) {
  ASSERT_THAT(ToDevice(Steps(host_)), IsOk());
  ASSERT_THAT(ToHost(Steps(back_)), IsOk());
  EXPECT_TRUE(host_ == back_);
}

TEST_F(TransferEngineTest, Clears) {
  ASSERT_THAT(ToDevice(Steps(host_)), IsOk());
  {
    ClearRun clears(*engine_);
    for (int i = 0; i < kParts; i += 2) {
      ASSERT_THAT(clears.Add(mappings_[i]->address(), kPart), IsOk());
    }
    ASSERT_THAT(clears.Finish(), IsOk());
  }
  ASSERT_THAT(ToHost(Steps(back_)), IsOk());
  for (int i = 0; i < kParts; i += 2) std::memset(&host_[kPart.size() * i], 0, kPart.size());
  EXPECT_TRUE(host_ == back_);
}

TEST_F(TransferEngineTest, DigestsByPosition) {
  ASSERT_THAT(ToDevice(Steps(host_)), IsOk());
  const Bytes position = kDigestPart * 5 + KiB(64);
  DigestRun run(*engine_);
  ASSERT_THAT(run.Add(mappings_[3]->address(), kPart, position), IsOk());
  ASSERT_THAT(run.Add(mappings_[1]->address(), KiB(64), Bytes(0)), IsOk());
  std::vector<std::pair<Bytes, PartDigest>> parts;
  ASSERT_THAT(run.Finish([&](Bytes at, const PartDigest& part) { parts.emplace_back(at, part); }),
              IsOk());
  const int64_t of_first = DigestParts(kPart, position);
  ASSERT_EQ(static_cast<int64_t>(parts.size()), of_first + 1);
  EXPECT_EQ(parts[0].first, position);
  EXPECT_EQ(parts[1].first, kDigestPart * 6);
  PartDigest sum;
  for (int64_t i = 0; i < of_first; ++i) sum += parts[static_cast<size_t>(i)].second;
  EXPECT_EQ(sum, DigestBytes(&host_[kPart.size() * 3], kPart, position));
  EXPECT_EQ(parts.back().second, DigestBytes(&host_[kPart.size()], KiB(64), Bytes(0)));
}

TEST_F(TransferEngineTest, RunsThatAreDroppedLeaveNothing) {
  // More than the buffer holds, but not at once.
  for (int i = 0; i < 5000; ++i) {
    DigestRun run(*engine_);
    for (int part = 0; part < kParts; ++part) {
      ASSERT_THAT(run.Add(mappings_[part]->address(), KiB(64), Bytes(0)), IsOk());
    }
    ClearRun clears(*engine_);
    ASSERT_THAT(clears.Add(mappings_[0]->address(), KiB(64)), IsOk());
  }
  UnmapAll();
}

// Steps that are not ready wait without any in flight, so that others have the link.
TEST_F(TransferEngineTest, WaitsForASourceWithNothingInFlight) {
  class Late final : public StepSource {
   public:
    Late(std::vector<CopyStep> steps, FaultDriver& driver)
        : steps_(std::move(steps)), driver_(driver) {}
    Result<Next> NextStep(bool may_block, CopyStep& step) override {
      if (next_ == steps_.size()) return Next::kEnd;
      if (!may_block && next_ == 5) return Next::kNotReady;
      if (may_block) {
        EXPECT_EQ(next_, 5u);
        EXPECT_EQ(driver_.Calls(CallKind::kWaitEvent), 5);
      }
      step = steps_[next_++];
      return Next::kStep;
    }

   private:
    const std::vector<CopyStep> steps_;
    FaultDriver& driver_;
    size_t next_ = 0;
  };
  ASSERT_THAT(ToDevice(Steps(host_)), IsOk());
  driver_.ResetCounts();
  Late late(Steps(back_), driver_);
  ASSERT_THAT(engine_->ToHost(late, 0, GoOn), IsOk());
  EXPECT_TRUE(host_ == back_);
}

TEST_F(TransferEngineTest, WhoWaitsForItsTurnCanBeInterrupted) {
  std::vector<CopyStep> many;
  for (int i = 0; i < 16; ++i) {
    for (const CopyStep& step : Steps(back_)) many.push_back(step);
  }
  driver_.StopAt(CallKind::kWaitEvent, 1);
  std::thread first([&] { EXPECT_THAT(ToHost(many), IsOk()); });
  ASSERT_TRUE(driver_.WaitUntilStopped(Clock::Real().Now() + seconds(20)));
  int asked = 0;
  const Status stop = DeadlineExceeded("STOP", "enough");
  EXPECT_EQ(ToHost(Steps(back_), [&] { return ++asked <= 3 ? Status::Ok() : stop; }), stop);
  driver_.Continue();
  first.join();
}

// One that is older and always has a step ready does not keep one of higher priority waiting.
TEST_F(TransferEngineTest, HigherPriorityGoesFirst) {
  class Endless final : public StepSource {
   public:
    explicit Endless(CopyStep step) : step_(step) {}
    Result<Next> NextStep(bool /*may_block*/, CopyStep& step) override {
      step = step_;
      return stopped || Clock::Real().Now() > until ? Next::kEnd : Next::kStep;
    }
    const TimePoint until = Clock::Real().Now() + seconds(60);
    std::atomic<bool> stopped = false;

   private:
    const CopyStep step_;
  };
  Endless endless(Steps(back_)[0]);
  std::atomic<int> arrived = 0;
  std::thread low(
      [&] { EXPECT_THAT(engine_->ToHost(endless, 0, GoOn, [&](Bytes) { ++arrived; }), IsOk()); });
  while (arrived < 100) std::this_thread::yield();
  StepList high(Steps(back_));
  EXPECT_THAT(engine_->ToHost(high, 1, GoOn), IsOk());
  EXPECT_LT(Clock::Real().Now(), endless.until);
  endless.stopped = true;
  low.join();
}

TEST_F(TransferEngineTest, NothingToCopyIsDoneAtOnce) {
  driver_.ResetCounts();
  EXPECT_THAT(ToHost({}), IsOk());
  EXPECT_EQ(driver_.Calls(std::nullopt), 0);
}

TEST_F(TransferEngineTest, AnInterruptStopsBeforeTheNextStep) {
  int asked = 0;
  const Status stop = DeadlineExceeded("STOP", "enough");
  const Status status = ToDevice(Steps(host_), [&] { return ++asked <= 3 ? Status::Ok() : stop; });
  EXPECT_EQ(status, stop);
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(driver_.Calls(CallKind::kCopyToDevice), 3);
  EXPECT_EQ(driver_.Calls(CallKind::kWaitEvent), 3);  // nothing is left in flight
  UnmapAll();
}

TEST_F(TransferEngineTest, QueuesAFewStepsAtATime) {
  int64_t most = 0;
  const auto count = [&] {
    most =
        std::max(most, driver_.Calls(CallKind::kRecordEvent) - driver_.Calls(CallKind::kWaitEvent));
    return Status::Ok();
  };
  std::vector<CopyStep> many;
  for (int i = 0; i < 16; ++i) {
    for (const CopyStep& step : Steps(host_)) many.push_back(step);
  }
  ASSERT_THAT(ToDevice(many, count), IsOk());
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 64);
}

// Whatever call fails: the error is told, nothing is in flight (so the memory can go at once), and
// the engine works on.
TEST_F(TransferEngineTest, EveryCallMayFailOnce) {
  for (const bool to_host : {false, true}) {
    for (int64_t n = 1;; ++n) {
      driver_.ResetCounts();
      driver_.FailNth(std::nullopt, n, fault_);
      const std::vector<CopyStep> steps = Steps(to_host ? back_ : host_);
      const Status status = to_host ? ToHost(steps) : ToDevice(steps);
      if (driver_.ClearFaults() != 0) {
        EXPECT_THAT(status, IsOk());
        break;
      }
      EXPECT_EQ(status, fault_) << "call " << n;
      const int64_t recorded = driver_.Calls(CallKind::kRecordEvent);
      const int64_t waited = driver_.Calls(CallKind::kWaitEvent);
      EXPECT_TRUE(waited == recorded || driver_.Calls(CallKind::kSynchronize) == 1) << n;
      // An event for each but the one that failed.
      EXPECT_LE(recorded - waited, 1) << n;
      ASSERT_THAT(ToDevice(Steps(host_)), IsOk());
      ASSERT_THAT(ToHost(Steps(back_)), IsOk());
      ASSERT_TRUE(host_ == back_);
    }
  }
}

// A step whose event could not be recorded, or waited for, may still run: only a synchronize tells.
TEST_F(TransferEngineTest, SynchronizesWhenAnEventFails) {
  for (const CallKind kind : {CallKind::kRecordEvent, CallKind::kWaitEvent}) {
    driver_.ResetCounts();
    driver_.FailNth(kind, 2, fault_);
    EXPECT_EQ(ToDevice(Steps(host_)), fault_);
    EXPECT_EQ(driver_.Calls(CallKind::kSynchronize), 1) << CallName(kind);
  }
  driver_.ResetCounts();
  driver_.FailNth(CallKind::kCopyToDevice, 2, fault_);
  EXPECT_EQ(ToDevice(Steps(host_)), fault_);
  EXPECT_EQ(driver_.Calls(CallKind::kSynchronize), 0);
}

TEST_F(TransferEngineTest, StreamsOfAFailedCreationAreDestroyed) {
  driver_.ResetCounts();
  driver_.FailNth(CallKind::kCreateStream, 2, fault_);
  EXPECT_FALSE(TransferEngine::Create(driver_).ok());
  EXPECT_EQ(driver_.Calls(CallKind::kDestroyStream), 1);
}

TEST_F(TransferEngineTest, ManyUsersShareBothDirections) {
  ASSERT_THAT(ToDevice(Steps(host_)), IsOk());
  std::vector<std::thread> threads;
  threads.reserve(kParts);
  for (int t = 0; t < kParts; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 10; ++i) {
        std::vector<CopyStep> steps;
        for (Bytes at{}; at < kPart; at += MiB(1)) {
          const size_t offset = kPart.size() * t + at.size();
          steps.push_back({mappings_[t]->address() + at, &back_[offset], MiB(1)});
        }
        EXPECT_THAT(ToHost(steps), IsOk());
        EXPECT_THAT(ToDevice(steps), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(host_ == back_);
}

}  // namespace
}  // namespace torpor
