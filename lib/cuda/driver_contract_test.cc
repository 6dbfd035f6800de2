// The contract suite on host memory.

#include "lib/cuda/driver_contract.h"

#include <memory>
#include <string>
#include <utility>

#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "lib/cuda/timed_driver.h"

namespace torpor {
namespace {

ContractDevice Host(const std::string& name, Bytes granularity, bool wrapped) {
  ContractDevice device;
  device.name = name;
  device.block = MiB(8);
  device.pointers = true;
  device.create = [=]() -> Result<std::unique_ptr<Driver>> {
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> host,
                            HostDriver::CreateDevice({"contract", MiB(256), granularity}));
    if (!wrapped) return host;
    auto faults = std::make_unique<FaultDriver>(std::move(host));
    return std::unique_ptr<Driver>(std::make_unique<TimedDriver>(std::move(faults)));
  };
  device.open = [](const DeviceInfo& info) -> Result<std::unique_ptr<Driver>> {
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> host, HostDriver::OpenDevice(info));
    return host;
  };
  return device;
}

}  // namespace
}  // namespace torpor

int main(int argc, char** argv) {
  return torpor::RunDriverContract(argc, argv,
                                   {torpor::Host("Host64KiB", torpor::KiB(64), false),
                                    torpor::Host("Host2MiB", torpor::MiB(2), false),
                                    torpor::Host("Wrapped2MiB", torpor::MiB(2), true)});
}
