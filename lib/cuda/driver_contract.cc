#include "lib/cuda/driver_contract.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/contract_worker.h"

namespace torpor {
namespace {

std::vector<ContractDevice>& Devices() {
  static auto* const devices = new std::vector<ContractDevice>();
  return *devices;
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

int RunDriverContract(int argc, char** argv, std::vector<ContractDevice> devices) {
  Devices() = std::move(devices);
  const auto open = [](const std::string& name, const DeviceInfo& info,
                       bool owner) -> Result<std::unique_ptr<Driver>> {
    for (const ContractDevice& device : Devices()) {
      if (device.name == name) return owner ? device.create() : device.open(info);
    }
    return NotFound("NO_SUCH_DEVICE", name);
  };
  if (RunAsContractWorker(argc, argv, open)) return 0;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

INSTANTIATE_TEST_SUITE_P(Drivers, DriverContractTest, ::testing::ValuesIn(Devices()),
                         [](const ::testing::TestParamInfo<ContractDevice>& info) {
                           return info.param.name;
                         });

void DriverContractTest::SetUp() {
  auto driver = GetParam().create();
  ASSERT_THAT(driver, IsOk());
  driver_ = *std::move(driver);
}

Bytes DriverContractTest::FreeMemory() {
  const Result<MemoryInfo> info = driver_->GetMemoryInfo();
  Must(info.status());
  EXPECT_EQ(info->total, driver_->device().total);
  return info->free;
}

Bytes DriverContractTest::FreeMemoryOnce(Bytes least) {
  const TimePoint deadline = Clock::Real().Now() + seconds(10);
  while (FreeMemory() < least - Slack() && Clock::Real().Now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return FreeMemory();
}

DeviceAddress DriverContractTest::Reserve(Bytes size) {
  const auto address = driver_->ReserveAddresses(size, Bytes(0));
  Must(address.status());
  return *address;
}

MemoryHandle DriverContractTest::Create(Bytes size) {
  const auto handle = driver_->Create(size);
  Must(handle.status());
  return *handle;
}

void DriverContractTest::MapWithAccess(DeviceAddress address, Bytes size, MemoryHandle handle,
                                       Access access) {
  Must(driver_->Map(address, size, handle));
  Must(driver_->SetAccess(address, size, access));
}

DeviceAddress DriverContractTest::MapNew(Bytes size) {
  const DeviceAddress address = Reserve(size);
  const MemoryHandle handle = Create(size);
  MapWithAccess(address, size, handle);
  Must(driver_->Release(handle));
  return address;
}

StreamId DriverContractTest::stream() {
  if (stream_ == StreamId()) {
    const auto stream = driver_->CreateStream();
    Must(stream.status());
    stream_ = *stream;
  }
  return stream_;
}

Status DriverContractTest::Wait(StreamId stream) {
  TORPOR_ASSIGN_OR_RETURN(const EventId event, driver_->RecordEvent(stream));
  return driver_->WaitEvent(event);
}

void DriverContractTest::Write(DeviceAddress to, const std::vector<uint8_t>& bytes) {
  const Bytes size(static_cast<int64_t>(bytes.size()));
  Must(driver_->CopyToDevice(stream(), to, bytes.data(), size));
  Must(Wait(stream()));
}

void DriverContractTest::Fill(DeviceAddress to, Bytes size, uint8_t byte) {
  Write(to, std::vector<uint8_t>(size.size(), byte));
}

std::vector<uint8_t> DriverContractTest::Read(DeviceAddress from, Bytes size) {
  std::vector<uint8_t> bytes(size.size(), 0xee);
  Must(driver_->CopyToHost(stream(), bytes.data(), from, size));
  Must(Wait(stream()));
  return bytes;
}

int DriverContractTest::ByteOf(DeviceAddress from, Bytes size) {
  const std::vector<uint8_t> bytes = Read(from, size);
  const bool same =
      std::all_of(bytes.begin(), bytes.end(), [&](uint8_t byte) { return byte == bytes[0]; });
  return same ? bytes[0] : -1;
}

}  // namespace torpor
