#ifndef TORPOR_DAEMON_MEMORY_MEMORY_FIXTURE_H_
#define TORPOR_DAEMON_MEMORY_MEMORY_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "daemon/admission/admission.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/device_memory.h"
#include "daemon/memory/extent.h"
#include "lib/base/clock.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {

// A device of small pages, and extents on it.
class MemoryFixture : public ::testing::Test {
 protected:
  static constexpr Bytes kPage = KiB(4);
  static constexpr Bytes kTotal = MiB(16);
  static constexpr Bytes Pages(int64_t count) { return kPage * count; }

  Result<ExtentPtr> TryCreate(Bytes offset, Bytes size) {
    TORPOR_ASSIGN_OR_RETURN(Draw draw, admission_.DrawDevice(size, ""));
    return Extent::Create(memory_, ExtentId(++last_extent_), offset, size, std::move(draw));
  }
  std::vector<ExtentPtr> Create(const std::vector<RangeSet::Range>& ranges) {
    std::vector<ExtentPtr> extents;
    for (const RangeSet::Range& range : PlanExtents(ranges)) {
      extents.push_back(*TryCreate(range.offset, range.size));
    }
    return extents;
  }
  Bytes Free() { return host_->GetMemoryInfo()->free; }

  const std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"memory", kTotal, kPage});
  FaultDriver driver_{*host_};
  DeviceMemory memory_{driver_};
  Admission admission_{
      {}, [this](auto accuracy) { return memory_.Measure(accuracy); }, Clock::Real()};
  uint64_t last_extent_ = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_MEMORY_FIXTURE_H_
