#include "daemon/open_driver.h"

#include <string>
#include <utility>

#include "lib/base/units.h"
#include "lib/cuda/cuda_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

Result<std::unique_ptr<Driver>> OpenCuda(const std::string& device) {
  CudaDriver::Options options;
  options.small_context = true;
  if (!device.empty() && device.size() <= 4 &&
      device.find_first_not_of("0123456789") == std::string::npos) {
    options.ordinal = std::stoi(device);
  } else {
    options.uuid = device;
  }
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<CudaDriver> driver, CudaDriver::OpenDevice(options));
  return std::unique_ptr<Driver>(std::move(driver));
}

Result<std::unique_ptr<Driver>> OpenHost(const Flags& flags) {
  HostDriver::DeviceOptions options;
  options.uuid = flags.device.empty() ? "host-0" : flags.device;
  options.total = flags.host_device_memory;
  options.granularity = flags.host_granularity;
  TORPOR_RETURN_IF_ERROR(CheckName(options.uuid, "device", "BAD_FLAG"));
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> driver, HostDriver::CreateDevice(options));
  return std::unique_ptr<Driver>(std::move(driver));
}

}  // namespace

Result<std::unique_ptr<Driver>> OpenDriver(const Flags& flags) {
  if (flags.driver == DriverChoice::kHost) return OpenHost(flags);
  if (flags.driver == DriverChoice::kCuda) return OpenCuda(flags.device);
  const bool names_gpu = flags.device.rfind("GPU-", 0) == 0 || flags.device.rfind("MIG-", 0) == 0;
  if (names_gpu || CudaDriver::Probe().presence != CudaDriver::Presence::kNone) {
    return OpenCuda(flags.device);
  }
  return OpenHost(flags);
}

}  // namespace torpor
