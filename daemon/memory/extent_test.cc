#include "daemon/memory/extent.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "daemon/memory/memory_fixture.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/owners.h"

namespace torpor {
namespace {

std::vector<Status>& Reported() {
  static auto* const reported = new std::vector<Status>();
  return *reported;
}

class ExtentTest : public MemoryFixture {
 protected:
  ExtentTest() {
    Reported().clear();
    SetDriverErrorSink([](const Status& status) { Reported().push_back(status); });
  }
  ~ExtentTest() override { SetDriverErrorSink(nullptr); }
  Bytes Available() { return admission_.Budget()->available; }
  const Status fault_ = Internal("FAULT", "injected");
};

TEST_F(ExtentTest, TakesMemoryAndGivesAllBackAtItsEnd) {
  {
    const ExtentPtr extent = *TryCreate(Pages(2), Pages(4));
    EXPECT_EQ(extent->offset(), Pages(2));
    EXPECT_EQ(extent->size(), Pages(4));
    EXPECT_EQ(extent->end(), Pages(6));
    EXPECT_GE(extent->fd(), 0);
    ASSERT_THAT(extent->MapForCopy(), IsOk());
    EXPECT_EQ(Free(), kTotal - Pages(4));
    EXPECT_EQ(Available(), kTotal - Pages(4));
  }
  EXPECT_EQ(Free(), kTotal);
  EXPECT_EQ(Available(), kTotal);
  EXPECT_TRUE(Reported().empty());
}

TEST_F(ExtentTest, IsMappedOnceWhoeverAsks) {
  const ExtentPtr extent = *TryCreate(Pages(0), Pages(1));
  std::vector<DeviceAddress> addresses(4);
  std::vector<std::thread> threads;
  threads.reserve(addresses.size());
  for (DeviceAddress& address : addresses) {
    threads.emplace_back([&] { address = *extent->MapForCopy(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const DeviceAddress address : addresses) EXPECT_EQ(address, addresses[0]);
  EXPECT_EQ(driver_.Calls(CallKind::kMap), 1);
}

TEST_F(ExtentTest, MemoryIsFreeOnceWorkersLetGoToo) {
  ExtentPtr extent = *TryCreate(Pages(0), Pages(3));
  auto import = *PhysicalAllocation::Import(*host_, extent->fd(), Pages(3));
  extent.reset();
  EXPECT_EQ(Free(), kTotal - Pages(3));
  import.reset();
  EXPECT_EQ(Free(), kTotal);
}

TEST_F(ExtentTest, AnyCallMayFailAndNothingIsLeft) {
  for (int64_t n = 1;; ++n) {
    driver_.ResetCounts();
    Draw draw = *admission_.DrawDevice(Pages(2), "");
    driver_.FailNth(std::nullopt, n, fault_);
    Status status;
    {
      auto extent = Extent::Create(memory_, ExtentId(1), Pages(0), Pages(2), std::move(draw));
      status = extent.ok() ? (*extent)->MapForCopy().status() : extent.status();
      const int unused = driver_.ClearFaults();
      if (unused != 0) {
        EXPECT_THAT(status, IsOk());
        break;
      }
      EXPECT_EQ(status, fault_) << n;
      if (extent.ok()) {
        EXPECT_THAT((*extent)->MapForCopy(), IsOk());  // asked again
      }
    }
    EXPECT_EQ(Free(), kTotal) << n;
    EXPECT_EQ(Available(), kTotal) << n;
    EXPECT_TRUE(Reported().empty()) << n;
  }
}

TEST_F(ExtentTest, ASurrenderedOneLeavesItsPromise) {
  const std::string id =
      admission_.Reserve({"job", {{"weights", Pages(8)}}, Bytes(0), seconds(60)})->id;
  for (const bool surrender : {false, true}) {
    Draw draw = *admission_.DrawDevice(Pages(8), id);
    auto extent = *Extent::Create(memory_, ExtentId(1), Pages(0), Pages(8), std::move(draw));
    if (surrender) extent->Surrender();
    extent.reset();
    EXPECT_EQ(Available(), surrender ? kTotal : kTotal - Pages(8));
  }
}

}  // namespace
}  // namespace torpor
