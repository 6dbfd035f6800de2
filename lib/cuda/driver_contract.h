#ifndef TORPOR_LIB_CUDA_DRIVER_CONTRACT_H_
#define TORPOR_LIB_CUDA_DRIVER_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// One implementation of Driver, for the suite that all must pass.
struct ContractDevice {
  std::string name;  // letters and digits
  // What most tests allocate: large against what the driver needs for itself, small against the
  // device.
  Bytes block{};
  // Device addresses are pointers: loads and stores without a device are part of the contract.
  bool pointers = false;
  std::function<Result<std::unique_ptr<Driver>>()> create;  // the owner of the memory
  // In another process than `create`: a user of the device that `info` describes.
  std::function<Result<std::unique_ptr<Driver>>(const DeviceInfo& info)> open;
};

inline void PrintTo(const ContractDevice& device, std::ostream* os) { *os << device.name; }

// The whole main() of a program that runs the suite over `devices`. The program runs itself again
// for tests with two processes.
int RunDriverContract(int argc, char** argv, std::vector<ContractDevice> devices);

class DriverContractTest : public ::testing::TestWithParam<ContractDevice> {
 protected:
  void SetUp() override;

  Driver& driver() { return *driver_; }
  Bytes unit() const { return driver_->device().granularity; }
  Bytes block() const { return GetParam().block; }
  Bytes FreeMemory();
  // The free memory once it is at least `least` (less what a driver keeps for itself), or after ten
  // seconds.
  Bytes FreeMemoryOnce(Bytes least);
  // Far less than a block.
  Bytes Slack() const { return Bytes(block().value() / 8); }

  // These abort the program when the driver refuses.
  DeviceAddress Reserve(Bytes size);
  MemoryHandle Create(Bytes size);
  void MapWithAccess(DeviceAddress address, Bytes size, MemoryHandle handle,
                     Access access = Access::kReadWrite);
  // A new mapping of new memory whose handle is released.
  DeviceAddress MapNew(Bytes size);
  StreamId stream();

  Status Wait(StreamId stream);
  void Write(DeviceAddress to, const std::vector<uint8_t>& bytes);
  void Fill(DeviceAddress to, Bytes size, uint8_t byte);
  std::vector<uint8_t> Read(DeviceAddress from, Bytes size);
  // The byte that the whole range has; -1 if there are several.
  int ByteOf(DeviceAddress from, Bytes size);

 private:
  std::unique_ptr<Driver> driver_;
  StreamId stream_;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DRIVER_CONTRACT_H_
