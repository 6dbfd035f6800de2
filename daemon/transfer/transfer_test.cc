#include "daemon/transfer/transfer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "lib/cuda/owners.h"

namespace torpor {
namespace {

constexpr DeviceAddress kAddress(uint64_t{1} << 40);

Status GoOn() { return Status::Ok(); }

class AppendStepTest : public ::testing::Test {
 protected:
  void Append(Bytes device_offset, std::byte* host, Bytes size) {
    AppendStep(steps_, {kAddress + device_offset, host, size});
  }
  // An address that is only calculated with.
  static std::byte* Host(Bytes offset) {
    return reinterpret_cast<std::byte*>(uintptr_t{1} << 41) + offset.value();
  }
  std::vector<CopyStep> steps_;
};

TEST_F(AppendStepTest, LengthensAStepThatContinuesAtBothEnds) {
  Append(MiB(0), Host(MiB(8)), MiB(2));
  Append(MiB(2), Host(MiB(10)), MiB(3));
  ASSERT_EQ(steps_.size(), 1u);
  EXPECT_EQ(steps_[0].device, kAddress);
  EXPECT_EQ(steps_[0].host, Host(MiB(8)));
  EXPECT_EQ(steps_[0].size, MiB(5));
}

TEST_F(AppendStepTest, KeepsStepsApartWhereOneEndJumps) {
  Append(MiB(0), Host(MiB(0)), MiB(2));
  Append(MiB(2), Host(MiB(4)), MiB(2));  // the host jumps
  Append(MiB(6), Host(MiB(6)), MiB(2));  // the device jumps
  EXPECT_EQ(steps_.size(), 3u);
}

TEST_F(AppendStepTest, MergesClearsButNotAClearWithACopy) {
  Append(MiB(0), nullptr, MiB(2));
  Append(MiB(2), nullptr, MiB(2));
  Append(MiB(4), Host(MiB(0)), MiB(2));
  Append(MiB(6), nullptr, MiB(2));
  ASSERT_EQ(steps_.size(), 3u);
  EXPECT_EQ(steps_[0].size, MiB(4));
  EXPECT_EQ(steps_[1].host, Host(MiB(0)));
  EXPECT_EQ(steps_[2].host, nullptr);
}

TEST_F(AppendStepTest, SplitsWhatIsTooLong) {
  Append(MiB(0), Host(MiB(0)), kMaxCopyStep * 2 + MiB(1));
  ASSERT_EQ(steps_.size(), 3u);
  EXPECT_EQ(steps_[1].device, kAddress + kMaxCopyStep);
  EXPECT_EQ(steps_[1].host, Host(kMaxCopyStep));
  EXPECT_EQ(steps_[1].size, kMaxCopyStep);
  EXPECT_EQ(steps_[2].size, MiB(1));
}

TEST_F(AppendStepTest, FillsTheLastStepBeforeItBeginsAnother) {
  Append(MiB(0), Host(MiB(0)), kMaxCopyStep - MiB(1));
  Append(kMaxCopyStep - MiB(1), Host(kMaxCopyStep - MiB(1)), MiB(4));
  ASSERT_EQ(steps_.size(), 2u);
  EXPECT_EQ(steps_[0].size, kMaxCopyStep);
  EXPECT_EQ(steps_[1].device, kAddress + kMaxCopyStep);
  EXPECT_EQ(steps_[1].host, Host(kMaxCopyStep));
  EXPECT_EQ(steps_[1].size, MiB(3));
}

TEST_F(AppendStepTest, CoversEveryByteOnceWhateverThePieces) {
  std::mt19937 random(3);
  Bytes at{};
  std::vector<CopyStep> pieces;
  for (int i = 0; i < 500; ++i) {
    const Bytes size(1 + static_cast<int64_t>(random() % MiB(9).size()));
    const Bytes jump(random() % 4 == 0 ? 4096 : 0);
    at += jump;
    pieces.push_back({kAddress + at, random() % 8 == 0 ? nullptr : Host(at), size});
    AppendStep(steps_, pieces.back());
    at += size;
  }
  // Walk steps and pieces side by side.
  size_t s = 0;
  Bytes in_step{};
  for (const CopyStep& piece : pieces) {
    for (Bytes in_piece{}; in_piece < piece.size;) {
      ASSERT_LT(s, steps_.size());
      const CopyStep& step = steps_[s];
      ASSERT_LE(step.size, kMaxCopyStep);
      ASSERT_EQ(step.device + in_step, piece.device + in_piece);
      ASSERT_EQ(step.host == nullptr, piece.host == nullptr);
      if (step.host != nullptr) {
        ASSERT_EQ(step.host + in_step.value(), piece.host + in_piece.value());
      }
      const Bytes both = std::min(step.size - in_step, piece.size - in_piece);
      in_step += both;
      in_piece += both;
      if (in_step == step.size) {
        ++s;
        in_step = Bytes(0);
      }
    }
  }
  EXPECT_EQ(s, steps_.size());
}

class TransferEngineTest : public ::testing::Test {
 protected:
  static constexpr int kParts = 8;
  static constexpr Bytes kPart = MiB(4);

  TransferEngineTest() : host_(kPart.size() * kParts), back_(host_.size()) {
    for (int i = 0; i < kParts; ++i) {
      auto mapping = *ScopedMapping::Create(
          driver_, *AddressReservation::Create(driver_, kPart), Bytes(0),
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
  ASSERT_THAT(engine_->ToDevice(Steps(host_), GoOn), IsOk());
  ASSERT_THAT(engine_->ToHost(Steps(back_), GoOn), IsOk());
  EXPECT_TRUE(host_ == back_);
}

TEST_F(TransferEngineTest, StepsWithoutAHostEndClear) {
  ASSERT_THAT(engine_->ToDevice(Steps(host_), GoOn), IsOk());
  std::vector<CopyStep> steps = Steps(host_);
  for (size_t i = 0; i < steps.size(); i += 2) steps[i].host = nullptr;
  ASSERT_THAT(engine_->ToDevice(steps, GoOn), IsOk());
  ASSERT_THAT(engine_->ToHost(Steps(back_), GoOn), IsOk());
  for (int i = 0; i < kParts; i += 2) std::memset(&host_[kPart.size() * i], 0, kPart.size());
  EXPECT_TRUE(host_ == back_);
}

TEST_F(TransferEngineTest, NothingToCopyIsDoneAtOnce) {
  driver_.ResetCounts();
  EXPECT_THAT(engine_->ToHost({}, GoOn), IsOk());
  EXPECT_EQ(driver_.Calls(std::nullopt), 0);
}

TEST_F(TransferEngineTest, AnInterruptStopsBeforeTheNextStep) {
  int asked = 0;
  const Status stop = DeadlineExceeded("STOP", "enough");
  const Status status =
      engine_->ToDevice(Steps(host_), [&] { return ++asked <= 3 ? Status::Ok() : stop; });
  EXPECT_EQ(status, stop);
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(driver_.Calls(CallKind::kCopyToDevice), 3);
  EXPECT_EQ(driver_.Calls(CallKind::kWaitEvent), 3);  // nothing is left in flight
  UnmapAll();
}

TEST_F(TransferEngineTest, QueuesAFewStepsAtATime) {
  int64_t most = 0;
  const auto count = [&] {
    most = std::max(most, driver_.Calls(CallKind::kRecordEvent) -
                              driver_.Calls(CallKind::kWaitEvent));
    return Status::Ok();
  };
  ASSERT_THAT(engine_->ToDevice(Steps(host_), count), IsOk());
  EXPECT_GE(most, 1);
  EXPECT_LT(most, kParts);
}

// Whatever call fails: the error is told, nothing is in flight (so the memory can go at once), and
// the engine works on.
TEST_F(TransferEngineTest, EveryCallMayFailOnce) {
  for (const bool to_host : {false, true}) {
    for (int64_t n = 1;; ++n) {
      driver_.ResetCounts();
      driver_.FailNth(std::nullopt, n, fault_);
      std::vector<CopyStep> steps = Steps(to_host ? back_ : host_);
      if (!to_host) steps[2].host = nullptr;
      const Status status =
          to_host ? engine_->ToHost(steps, GoOn) : engine_->ToDevice(steps, GoOn);
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
      ASSERT_THAT(engine_->ToDevice(Steps(host_), GoOn), IsOk());
      ASSERT_THAT(engine_->ToHost(Steps(back_), GoOn), IsOk());
      ASSERT_TRUE(host_ == back_);
    }
  }
}

// A step whose event could not be recorded, or waited for, may still run: only a synchronize tells.
TEST_F(TransferEngineTest, SynchronizesWhenAnEventFails) {
  for (const CallKind kind : {CallKind::kRecordEvent, CallKind::kWaitEvent}) {
    driver_.ResetCounts();
    driver_.FailNth(kind, 2, fault_);
    EXPECT_EQ(engine_->ToDevice(Steps(host_), GoOn), fault_);
    EXPECT_EQ(driver_.Calls(CallKind::kSynchronize), 1) << CallName(kind);
  }
  driver_.ResetCounts();
  driver_.FailNth(CallKind::kCopyToDevice, 2, fault_);
  EXPECT_EQ(engine_->ToDevice(Steps(host_), GoOn), fault_);
  EXPECT_EQ(driver_.Calls(CallKind::kSynchronize), 0);
}

TEST_F(TransferEngineTest, StreamsOfAFailedCreationAreDestroyed) {
  driver_.ResetCounts();
  driver_.FailNth(CallKind::kCreateStream, 2, fault_);
  EXPECT_FALSE(TransferEngine::Create(driver_).ok());
  EXPECT_EQ(driver_.Calls(CallKind::kDestroyStream), 1);
}

TEST_F(TransferEngineTest, ManyUsersShareBothDirections) {
  ASSERT_THAT(engine_->ToDevice(Steps(host_), GoOn), IsOk());
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
        EXPECT_THAT(engine_->ToHost(steps, GoOn), IsOk());
        EXPECT_THAT(engine_->ToDevice(steps, GoOn), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(host_ == back_);
}

}  // namespace
}  // namespace torpor
