// The driver's contract suite on a real GPU, the first that is visible. Nothing else may use the
// device meanwhile.

#include <memory>

#include "lib/cuda/cuda_driver.h"
#include "lib/cuda/driver_contract.h"

namespace torpor {
namespace {

ContractDevice Cuda() {
  ContractDevice device;
  device.name = "Cuda";
  device.block = MiB(256);
  device.create = []() -> Result<std::unique_ptr<Driver>> {
    CudaDriver::Options options;
    options.small_context = true;
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, CudaDriver::OpenDevice(options));
    return driver;
  };
  device.open = [](const DeviceInfo& info) -> Result<std::unique_ptr<Driver>> {
    CudaDriver::Options options;
    options.uuid = info.uuid;
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, CudaDriver::OpenDevice(options));
    return driver;
  };
  return device;
}

}  // namespace
}  // namespace torpor

int main(int argc, char** argv) { return torpor::RunDriverContract(argc, argv, {torpor::Cuda()}); }
