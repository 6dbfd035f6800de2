#include "lib/cuda/fault_driver.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

class FaultDriverTest : public ::testing::Test {
 protected:
  static TimePoint Soon() { return Clock::Real().Now() + seconds(60); }

  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"fault", MiB(64), MiB(2)});
  FaultDriver driver_{*host_};
  const Status fault_ = ResourceExhausted("FAULT", "injected");
};

TEST_F(FaultDriverTest, CountsByKind) {
  const MemoryHandle handle = *driver_.Create(MiB(2));
  EXPECT_TRUE(driver_.Release(handle).ok());
  EXPECT_FALSE(driver_.Release(handle).ok());
  EXPECT_EQ(driver_.Calls(CallKind::kCreate), 1);
  EXPECT_EQ(driver_.Calls(CallKind::kRelease), 2);
  EXPECT_EQ(driver_.Calls(CallKind::kMap), 0);
  EXPECT_EQ(driver_.Calls(std::nullopt), 3);
  driver_.ResetCounts();
  EXPECT_EQ(driver_.Calls(std::nullopt), 0);
}

TEST_F(FaultDriverTest, FailsTheNthOfAKindOnce) {
  driver_.FailNth(CallKind::kCreate, 2, fault_);
  EXPECT_TRUE(driver_.GetMemoryInfo().ok());
  EXPECT_TRUE(driver_.Create(MiB(2)).ok());
  EXPECT_EQ(driver_.Create(MiB(2)).status(), fault_);
  EXPECT_TRUE(driver_.Create(MiB(2)).ok());
  EXPECT_EQ(host_->GetMemoryInfo()->free, MiB(60));
}

TEST_F(FaultDriverTest, FailsTheNthOfAnyKindOnce) {
  driver_.FailNth(std::nullopt, 2, fault_);
  EXPECT_TRUE(driver_.Create(MiB(2)).ok());
  EXPECT_EQ(driver_.GetMemoryInfo().status(), fault_);
  EXPECT_TRUE(driver_.GetMemoryInfo().ok());
  EXPECT_EQ(driver_.ClearFaults(), 0);
}

TEST_F(FaultDriverTest, ForgetsFaultsThatDidNotHappen) {
  driver_.FailNth(CallKind::kCreate, 1, fault_);
  driver_.FailNth(CallKind::kMap, 9, fault_);
  EXPECT_EQ(driver_.ClearFaults(), 2);
  EXPECT_TRUE(driver_.Create(MiB(2)).ok());
}

TEST_F(FaultDriverTest, AFailedWaitStillWaits) {
  const DeviceAddress address = *driver_.ReserveAddresses(MiB(32), Bytes(0));
  ASSERT_TRUE(driver_.Map(address, MiB(32), *driver_.Create(MiB(32))).ok());
  ASSERT_TRUE(driver_.SetAccess(address, MiB(32), Access::kReadWrite).ok());
  const StreamId stream = *driver_.CreateStream();
  ASSERT_TRUE(driver_.Clear(stream, address, MiB(32)).ok());
  const EventId event = *driver_.RecordEvent(stream);
  driver_.FailNth(CallKind::kWaitEvent, 1, fault_);
  EXPECT_EQ(driver_.WaitEvent(event), fault_);
  EXPECT_EQ(host_->WaitEvent(event).reason(), "DRIVER_INVALID_VALUE");
  EXPECT_TRUE(driver_.Unmap(address, MiB(32)).ok());
  EXPECT_TRUE(driver_.Synchronize().ok());
}

TEST_F(FaultDriverTest, StopsUntilContinue) {
  driver_.StopAt(CallKind::kCreate, 2);
  EXPECT_TRUE(driver_.Create(MiB(2)).ok());
  std::thread creator([&] { EXPECT_TRUE(driver_.Create(MiB(2)).ok()); });
  ASSERT_TRUE(driver_.WaitUntilStopped(Soon()));
  EXPECT_EQ(driver_.Calls(CallKind::kCreate), 2);
  EXPECT_EQ(driver_.GetMemoryInfo()->free, MiB(62));  // others pass
  driver_.Continue();
  creator.join();
  EXPECT_EQ(driver_.GetMemoryInfo()->free, MiB(60));
}

TEST_F(FaultDriverTest, AStopMayFailAsWell) {
  driver_.StopAt(CallKind::kCreate, 1);
  driver_.FailNth(CallKind::kCreate, 1, fault_);
  std::thread creator([&] { EXPECT_EQ(driver_.Create(MiB(2)).status(), fault_); });
  ASSERT_TRUE(driver_.WaitUntilStopped(Soon()));
  driver_.Continue();
  creator.join();
}

TEST_F(FaultDriverTest, ContinueForgetsStopsThatWereNotReached) {
  driver_.StopAt(CallKind::kCreate, 1);
  EXPECT_FALSE(driver_.WaitUntilStopped(Clock::Real().Now() + milliseconds(5)));
  driver_.Continue();
  EXPECT_TRUE(driver_.Create(MiB(2)).ok());
}

TEST_F(FaultDriverTest, EveryKindHasItsName) {
  for (int kind = 0; kind < kCallKinds; ++kind) {
    EXPECT_STRNE(CallName(static_cast<CallKind>(kind)), "?") << kind;
  }
}

}  // namespace
}  // namespace torpor
