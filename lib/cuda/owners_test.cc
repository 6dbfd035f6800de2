#include "lib/cuda/owners.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

std::vector<Status>& Reported() {
  static auto* const reported = new std::vector<Status>();
  return *reported;
}

class OwnersTest : public ::testing::Test {
 protected:
  OwnersTest() {
    Reported().clear();
    SetDriverErrorSink([](const Status& status) { Reported().push_back(status); });
  }
  ~OwnersTest() override { SetDriverErrorSink(nullptr); }

  Bytes Free() { return host_->GetMemoryInfo()->free; }

  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"owners", MiB(64), MiB(2)});
  FaultDriver driver_{*host_};
};

TEST_F(OwnersTest, AllocationReleasesItsHandle) {
  {
    const auto allocation = *PhysicalAllocation::Create(driver_, MiB(4));
    EXPECT_EQ(Free(), MiB(60));
    EXPECT_EQ(allocation->size(), MiB(4));
  }
  EXPECT_EQ(Free(), MiB(64));
  EXPECT_TRUE(Reported().empty());
}

TEST_F(OwnersTest, ImportIsItsOwnHandle) {
  auto allocation = *PhysicalAllocation::Create(driver_, MiB(4));
  UniqueFd fd = *allocation->Export();
  auto import = *PhysicalAllocation::Import(driver_, fd.get(), MiB(4));
  EXPECT_FALSE(import->Export().ok());
  allocation.reset();
  fd.Reset();
  EXPECT_EQ(Free(), MiB(60));
  import.reset();
  EXPECT_EQ(Free(), MiB(64));
}

TEST_F(OwnersTest, MappingKeepsItsParentsAlive) {
  auto reservation = *AddressReservation::Create(driver_, MiB(8));
  auto allocation = *PhysicalAllocation::Create(driver_, MiB(2));
  auto mapping =
      *ScopedMapping::Create(driver_, reservation, MiB(6), allocation, Access::kReadWrite);
  EXPECT_EQ(mapping->address(), reservation->address() + MiB(6));
  EXPECT_EQ(mapping->size(), MiB(2));
  reservation.reset();
  allocation.reset();
  EXPECT_EQ(driver_.Calls(CallKind::kRelease), 0);
  *reinterpret_cast<char*>(mapping->address().value()) = 1;
  mapping.reset();
  EXPECT_EQ(driver_.Calls(CallKind::kRelease), 1);
  EXPECT_EQ(driver_.Calls(CallKind::kFreeAddresses), 1);
  EXPECT_EQ(Free(), MiB(64));
  EXPECT_TRUE(Reported().empty());
}

TEST_F(OwnersTest, MappingStaysInsideTheReservation) {
  const auto reservation = *AddressReservation::Create(driver_, MiB(4));
  const auto small = *PhysicalAllocation::Create(driver_, MiB(2));
  const auto large = *PhysicalAllocation::Create(driver_, MiB(6));
  for (const auto& [offset, allocation] :
       {std::pair(MiB(4), small), std::pair(MiB(-2), small), std::pair(MiB(0), large),
        std::pair(Bytes(INT64_MAX), small)}) {
    const auto mapping =
        ScopedMapping::Create(driver_, reservation, offset, allocation, Access::kReadOnly);
    EXPECT_EQ(mapping.status().reason(), "DRIVER_INVALID_VALUE");
  }
  EXPECT_EQ(driver_.Calls(CallKind::kMap), 0);
}

TEST_F(OwnersTest, EveryFailureLeavesNothing) {
  const Status fault = Internal("FAULT", "injected");
  for (int n = 1;; ++n) {
    driver_.FailNth(std::nullopt, n, fault);
    const auto build = [&]() -> Result<std::shared_ptr<ScopedMapping>> {
      TORPOR_ASSIGN_OR_RETURN(auto reservation, AddressReservation::Create(driver_, MiB(4)));
      TORPOR_ASSIGN_OR_RETURN(auto allocation, PhysicalAllocation::Create(driver_, MiB(2)));
      return ScopedMapping::Create(driver_, std::move(reservation), MiB(2), std::move(allocation),
                                   Access::kReadWrite);
    };
    const bool built = build().ok();
    EXPECT_EQ(Free(), MiB(64)) << n;
    if (built) {
      // The destructor's own call fails and is tried again.
      EXPECT_EQ(n, 5);
      EXPECT_EQ(Reported().size(), 1u);
      EXPECT_EQ(driver_.Calls(CallKind::kUnmap), 2);
      break;
    }
    EXPECT_EQ(driver_.Calls(CallKind::kUnmap), n == 4 ? 1 : 0);
    EXPECT_TRUE(Reported().empty()) << n;
    driver_.ResetCounts();
  }
}

TEST_F(OwnersTest, DestructorReportsWhatItCannotReturn) {
  auto allocation = *PhysicalAllocation::Create(driver_, MiB(2));
  driver_.FailNth(CallKind::kRelease, 1, Internal("FAULT", "injected"));
  driver_.FailNth(CallKind::kRelease, 2, Internal("SECOND_FAULT", "injected"));
  allocation.reset();
  ASSERT_EQ(Reported().size(), 2u);
  EXPECT_EQ(Reported()[0].reason(), "FAULT");
  EXPECT_EQ(Reported()[1].reason(), "SECOND_FAULT");
}

}  // namespace
}  // namespace torpor
