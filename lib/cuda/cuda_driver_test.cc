// What a machine without a GPU can tell; //tests/gpu has the rest.

#include "lib/cuda/cuda_driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

TEST(CudaDriverTest, NoDeviceIsNotABrokenOne) {
  const CudaDriver::ProbeResult probe = CudaDriver::Probe();
  switch (probe.presence) {
    case CudaDriver::Presence::kNone:
      EXPECT_NE(::access("/dev/nvidiactl", F_OK), 0);
      EXPECT_THAT(probe.error, IsOk());
      EXPECT_FALSE(CudaDriver::OpenDevice({}).ok());
      break;
    case CudaDriver::Presence::kUsable:
      EXPECT_GT(probe.devices, 0);
      EXPECT_THAT(probe.error, IsOk());
      break;
    case CudaDriver::Presence::kBroken:
      EXPECT_FALSE(probe.error.ok());
      break;
  }
}

TEST(CudaDriverTest, SaysWhatIsMissing) {
  CudaDriver::Options options;
  options.uuid = "GPU-00000000-0000-0000-0000-000000000000";
  const Status status = CudaDriver::OpenDevice(options).status();
  EXPECT_FALSE(status.ok());
  if (CudaDriver::Probe().presence == CudaDriver::Presence::kUsable) {
    EXPECT_THAT(status, HasReason("NO_SUCH_DEVICE"));
  }
}

}  // namespace
}  // namespace torpor
