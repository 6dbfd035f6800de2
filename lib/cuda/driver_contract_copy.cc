// Host memory, streams, copies and events.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/driver_contract.h"

namespace torpor {
namespace {

constexpr char kInvalid[] = "DRIVER_INVALID_VALUE";

// Page-aligned host memory.
class HostMemory {
 public:
  explicit HostMemory(Bytes size) : size_(size) {
    memory_ =
        ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~HostMemory() { ::munmap(memory_, size_.size()); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  uint8_t* at(Bytes offset = Bytes(0)) { return static_cast<uint8_t*>(memory_) + offset.value(); }

 private:
  const Bytes size_;
  void* memory_;
};

std::vector<uint8_t> Pattern(Bytes size) {
  std::vector<uint8_t> bytes(size.size());
  uint32_t state = 12345;
  for (uint8_t& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return bytes;
}

const Bytes kPage(::sysconf(_SC_PAGESIZE));

TEST_P(DriverContractTest, CopiesKeepEveryByte) {
  const DeviceAddress address = Reserve(unit() * 2);
  MapWithAccess(address, unit(), Create(unit()));
  MapWithAccess(address + unit(), unit(), Create(unit()));
  const std::vector<uint8_t> pattern = Pattern(unit() * 2);
  Write(address, pattern);
  EXPECT_EQ(Read(address, unit() * 2), pattern);
  // Odd sizes at odd places, and over the border of two mappings.
  const struct {
    Bytes offset;
    Bytes size;
  } ranges[] = {{Bytes(0), Bytes(1)},
                {Bytes(1), Bytes(3)},
                {Bytes(4095), Bytes(4098)},
                {unit() - Bytes(5), Bytes(11)},
                {unit() * 2 - Bytes(7), Bytes(7)}};
  for (const auto& [offset, size] : ranges) {
    const auto begin = pattern.begin() + offset.value();
    EXPECT_EQ(Read(address + offset, size), std::vector<uint8_t>(begin, begin + size.value()));
    Write(address + offset, std::vector<uint8_t>(size.size(), 0x11));
    EXPECT_EQ(ByteOf(address + offset, size), 0x11);
    Write(address + offset, std::vector<uint8_t>(begin, begin + size.value()));
  }
  EXPECT_EQ(Read(address, unit() * 2), pattern);
}

TEST_P(DriverContractTest, ClearsExactlyTheRange) {
  const DeviceAddress address = MapNew(unit());
  Fill(address, unit(), 0xff);
  EXPECT_THAT(driver().Clear(stream(), address + Bytes(3), Bytes(4097)), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
  EXPECT_EQ(ByteOf(address, Bytes(3)), 0xff);
  EXPECT_EQ(ByteOf(address + Bytes(3), Bytes(4097)), 0);
  EXPECT_EQ(ByteOf(address + Bytes(4100), unit() - Bytes(4100)), 0xff);
}

TEST_P(DriverContractTest, RegisteredMemoryTakesCopies) {
  const DeviceAddress address = MapNew(block());
  HostMemory host(block() * 2);
  EXPECT_THAT(driver().RegisterHost(host.at(), block() * 2), IsOk());
  const std::vector<uint8_t> pattern = Pattern(block());
  std::copy(pattern.begin(), pattern.end(), host.at());
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(), block()), IsOk());
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(block()), address, block()), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
  EXPECT_TRUE(std::equal(pattern.begin(), pattern.end(), host.at(block())));
  EXPECT_THAT(driver().UnregisterHost(host.at()), IsOk());
  // It is ordinary memory again.
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, block()), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
}

TEST_P(DriverContractTest, RegistrationRules) {
  HostMemory host(kPage * 8);
  EXPECT_THAT(driver().RegisterHost(host.at(Bytes(1)), kPage), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(host.at(), kPage + Bytes(1)), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(host.at(), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(nullptr, kPage), HasReason(kInvalid));
  EXPECT_THAT(driver().UnregisterHost(host.at()), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(host.at(kPage * 2), kPage * 2), IsOk());
  EXPECT_THAT(driver().RegisterHost(host.at(kPage * 2), kPage * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(host.at(kPage), kPage * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(host.at(kPage * 3), kPage * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().RegisterHost(host.at(kPage), kPage), IsOk());
  EXPECT_THAT(driver().UnregisterHost(host.at(kPage * 3)), HasReason(kInvalid));
  EXPECT_THAT(driver().UnregisterHost(host.at(kPage * 2)), IsOk());
  EXPECT_THAT(driver().UnregisterHost(host.at(kPage * 2)), HasReason(kInvalid));
  EXPECT_THAT(driver().UnregisterHost(host.at(kPage)), IsOk());
}

TEST_P(DriverContractTest, RegistrationNeedsMemory) {
  HostMemory host(kPage * 4);
  ASSERT_EQ(::munmap(host.at(kPage * 2), kPage.size()), 0);
  EXPECT_FALSE(driver().RegisterHost(host.at(), kPage * 4).ok());
  EXPECT_THAT(driver().RegisterHost(host.at(), kPage * 2), IsOk());
  EXPECT_THAT(driver().UnregisterHost(host.at()), IsOk());
}

TEST_P(DriverContractTest, CopiesDoNotCrossRegistrations) {
  const DeviceAddress address = MapNew(unit());
  HostMemory host(unit() * 3);
  EXPECT_THAT(driver().RegisterHost(host.at(), unit()), IsOk());
  EXPECT_THAT(driver().RegisterHost(host.at(unit()), unit()), IsOk());
  for (const Bytes offset : {unit() - Bytes(1), unit() - kPage, unit() - kPage + Bytes(8)}) {
    const Bytes size = std::min(kPage * 2, unit());
    EXPECT_THAT(driver().CopyToHost(stream(), host.at(offset), address, size), HasReason(kInvalid));
    EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(offset), size),
                HasReason(kInvalid));
  }
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, unit()), IsOk());
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(unit()), address, unit()), IsOk());
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(unit() * 2), unit()), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
  EXPECT_THAT(driver().UnregisterHost(host.at()), IsOk());
  EXPECT_THAT(driver().UnregisterHost(host.at(unit())), IsOk());
}

TEST_P(DriverContractTest, CopiesNeedMappedMemory) {
  const DeviceAddress address = Reserve(unit() * 2);
  MapWithAccess(address, unit(), Create(unit()));
  HostMemory host(unit() * 2);
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address + unit(), unit()),
              HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(), unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().Clear(stream(), address, unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, Bytes(-1)), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToHost(stream(), nullptr, address, unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToDevice(stream(), address, nullptr, unit()), HasReason(kInvalid));
  EXPECT_THAT(Wait(stream()), IsOk()) << "nothing was queued";
}

TEST_P(DriverContractTest, CopiesNeedAccess) {
  const DeviceAddress address = Reserve(unit());
  EXPECT_THAT(driver().Map(address, unit(), Create(unit())), IsOk());
  HostMemory host(unit());
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(), unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().SetAccess(address, unit(), Access::kReadOnly), IsOk());
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, unit()), IsOk());
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(), unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().Clear(stream(), address, unit()), HasReason(kInvalid));
  EXPECT_THAT(Wait(stream()), IsOk());
}

TEST_P(DriverContractTest, AStreamKeepsOrder) {
  const DeviceAddress address = MapNew(block());
  HostMemory host(block());
  EXPECT_THAT(driver().RegisterHost(host.at(), block()), IsOk());
  const std::vector<uint8_t> pattern = Pattern(block());
  std::copy(pattern.begin(), pattern.end(), host.at());
  // Each reads what the one before has written.
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(), block()), IsOk());
  EXPECT_THAT(driver().Clear(stream(), address, Bytes(100)), IsOk());
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, block()), IsOk());
  EXPECT_THAT(driver().Clear(stream(), address, block()), IsOk());
  EXPECT_THAT(driver().CopyToDevice(stream(), address, host.at(), block()), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
  EXPECT_EQ(ByteOf(address, Bytes(100)), 0);
  EXPECT_TRUE(std::equal(pattern.begin() + 100, pattern.end(), host.at(Bytes(100))));
  EXPECT_EQ(Read(address + Bytes(100), block() - Bytes(100)),
            std::vector<uint8_t>(pattern.begin() + 100, pattern.end()));
  EXPECT_THAT(driver().UnregisterHost(host.at()), IsOk());
}

TEST_P(DriverContractTest, AnEventCoversWhatWasQueuedBeforeIt) {
  const DeviceAddress address = MapNew(block());
  HostMemory host(block() * 2);
  EXPECT_THAT(driver().RegisterHost(host.at(), block() * 2), IsOk());
  const StreamId other = *driver().CreateStream();
  Fill(address, block(), 1);
  EXPECT_THAT(driver().CopyToHost(stream(), host.at(), address, block()), IsOk());
  const EventId first = *driver().RecordEvent(stream());
  EXPECT_THAT(driver().CopyToHost(other, host.at(block()), address, block()), IsOk());
  const EventId second = *driver().RecordEvent(other);
  EXPECT_THAT(driver().WaitEvent(second), IsOk());
  EXPECT_EQ(std::count(host.at(block()), host.at(block() * 2), 1), block().value());
  EXPECT_THAT(driver().WaitEvent(first), IsOk());
  EXPECT_EQ(std::count(host.at(), host.at(block()), 1), block().value());
  EXPECT_THAT(driver().WaitEvent(first), HasReason(kInvalid)) << "it is destroyed";
  EXPECT_THAT(driver().WaitEvent(EventId()), HasReason(kInvalid));
  EXPECT_THAT(driver().DestroyStream(other), IsOk());
  EXPECT_THAT(driver().UnregisterHost(host.at()), IsOk());
}

TEST_P(DriverContractTest, ADestroyedStreamTakesNoWork) {
  const DeviceAddress address = MapNew(unit());
  HostMemory host(unit());
  const StreamId gone = *driver().CreateStream();
  EXPECT_THAT(driver().DestroyStream(gone), IsOk());
  EXPECT_THAT(driver().DestroyStream(gone), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToHost(gone, host.at(), address, unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().CopyToDevice(gone, address, host.at(), unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().Clear(gone, address, unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().RecordEvent(gone), HasReason(kInvalid));
}

TEST_P(DriverContractTest, AnEventOutlivesItsStream) {
  const DeviceAddress address = MapNew(block());
  const StreamId brief = *driver().CreateStream();
  EXPECT_THAT(driver().Clear(brief, address, block()), IsOk());
  const EventId event = *driver().RecordEvent(brief);
  EXPECT_THAT(driver().DestroyStream(brief), IsOk());
  EXPECT_THAT(driver().WaitEvent(event), IsOk());
}

TEST_P(DriverContractTest, SynchronizeCoversAllStreams) {
  EXPECT_THAT(driver().Synchronize(), IsOk());
  const DeviceAddress address = MapNew(block());
  Fill(address, block(), 2);
  HostMemory host(block() * 2);
  EXPECT_THAT(driver().RegisterHost(host.at(), block() * 2), IsOk());
  for (const Bytes offset : {Bytes(0), block()}) {
    const StreamId stream = *driver().CreateStream();
    EXPECT_THAT(driver().CopyToHost(stream, host.at(offset), address, block()), IsOk());
  }
  EXPECT_THAT(driver().Synchronize(), IsOk());
  EXPECT_EQ(std::count(host.at(), host.at(block() * 2), 2), block().value() * 2);
  EXPECT_THAT(driver().UnregisterHost(host.at()), IsOk());
}

}  // namespace
}  // namespace torpor
