// Addresses, physical memory and mappings, in one process.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/driver_contract.h"

namespace torpor {
namespace {

constexpr char kInvalid[] = "DRIVER_INVALID_VALUE";
constexpr Bytes kTiB = GiB(1024);

TEST_P(DriverContractTest, DeviceDescribesItself) {
  const DeviceInfo& device = driver().device();
  EXPECT_FALSE(device.kind.empty());
  EXPECT_FALSE(device.uuid.empty());
  EXPECT_FALSE(device.name.empty());
  EXPECT_GT(device.granularity, Bytes(0));
  EXPECT_GE(device.total, unit());
  EXPECT_LE(FreeMemory(), device.total);
}

// ---- Addresses

TEST_P(DriverContractTest, AddressesTakeNoMemory) {
  const Bytes before = FreeMemory();
#if defined(__SANITIZE_THREAD__)
  const Bytes huge = GiB(256);  // TSan leaves a program few addresses
#else
  const Bytes huge = kTiB * 16;
#endif
  const DeviceAddress address = Reserve(huge);
  const DeviceAddress other = Reserve(Bytes(huge.value() / 16));
  EXPECT_GE(FreeMemory(), before - Slack());
  const DeviceAddress last = address + (huge - unit());
  MapWithAccess(last, unit(), Create(unit()));
  Fill(last, unit(), 7);
  EXPECT_EQ(ByteOf(last, unit()), 7);
  EXPECT_THAT(driver().Unmap(last, unit()), IsOk());
  EXPECT_THAT(driver().FreeAddresses(address, huge), IsOk());
  EXPECT_THAT(driver().FreeAddresses(other, Bytes(huge.value() / 16)), IsOk());
}

TEST_P(DriverContractTest, AddressesAreAligned) {
  EXPECT_EQ(Reserve(unit()).value() % unit().size(), 0u);
  for (const Bytes alignment : {unit(), unit() * 4, GiB(1)}) {
    const auto address = driver().ReserveAddresses(unit() * 3, alignment);
    ASSERT_THAT(address, IsOk());
    EXPECT_EQ(address->value() % alignment.size(), 0u);
    EXPECT_THAT(driver().FreeAddresses(*address, unit() * 3), IsOk());
  }
}

TEST_P(DriverContractTest, ReserveRefusesBadSizes) {
  for (const Bytes size : {Bytes(0), Bytes(0) - unit(), Bytes(1), unit() + Bytes(4096)}) {
    EXPECT_THAT(driver().ReserveAddresses(size, Bytes(0)), HasReason(kInvalid)) << size.value();
  }
  EXPECT_THAT(driver().ReserveAddresses(unit(), unit() * 3), HasReason(kInvalid));
  EXPECT_THAT(driver().ReserveAddresses(unit(), Bytes(-1)), HasReason(kInvalid));
}

TEST_P(DriverContractTest, OnlyWholeReservationsAreFreed) {
  const DeviceAddress address = Reserve(unit() * 4);
  EXPECT_THAT(driver().FreeAddresses(address, unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().FreeAddresses(address + unit(), unit() * 3), HasReason(kInvalid));
  EXPECT_THAT(driver().FreeAddresses(address + unit(), unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().FreeAddresses(address, unit() * 4), IsOk());
  EXPECT_THAT(driver().FreeAddresses(address, unit() * 4), HasReason(kInvalid));
}

TEST_P(DriverContractTest, MappedAddressesAreNotFreed) {
  const DeviceAddress address = Reserve(unit() * 4);
  MapWithAccess(address + unit(), unit(), Create(unit()));
  EXPECT_THAT(driver().FreeAddresses(address, unit() * 4), HasReason(kInvalid));
  Fill(address + unit(), unit(), 3);
  EXPECT_EQ(ByteOf(address + unit(), unit()), 3);
  EXPECT_THAT(driver().Unmap(address + unit(), unit()), IsOk());
  EXPECT_THAT(driver().FreeAddresses(address, unit() * 4), IsOk());
}

// ---- Physical memory

TEST_P(DriverContractTest, CreateRefusesBadSizes) {
  for (const Bytes size : {Bytes(0), Bytes(0) - unit(), Bytes(1), unit() + Bytes(4096)}) {
    EXPECT_THAT(driver().Create(size), HasReason(kInvalid)) << size.value();
  }
}

TEST_P(DriverContractTest, MemoryComesCleared) {
  for (int round = 0; round < 3; ++round) {
    const DeviceAddress address = MapNew(block());
    EXPECT_EQ(ByteOf(address, block()), 0);
    Fill(address, block(), 0xab);
    EXPECT_THAT(driver().Unmap(address, block()), IsOk());
    EXPECT_THAT(driver().FreeAddresses(address, block()), IsOk());
  }
}

TEST_P(DriverContractTest, OutOfMemoryLeavesTheNextCallWorking) {
  const auto absurd = driver().Create(RoundUp(driver().device().total, unit()) + unit());
  EXPECT_THAT(absurd, HasReason("DEVICE_OUT_OF_MEMORY"));
  EXPECT_THAT(absurd, HasCode(Code::kResourceExhausted));
  const Bytes free = FreeMemory();
  const MemoryHandle most = Create(free - free % unit() - block() * 3);
  EXPECT_THAT(driver().Create(block() * 4), HasReason("DEVICE_OUT_OF_MEMORY"));
  const auto rest = driver().Create(block());
  EXPECT_THAT(rest, IsOk());
  EXPECT_THAT(driver().Release(most), IsOk());
  EXPECT_THAT(driver().Release(*rest), IsOk());
  EXPECT_GE(FreeMemoryOnce(free), free - Slack());
  EXPECT_THAT(driver().Create(block() * 4), IsOk());
}

TEST_P(DriverContractTest, HandlesAreReleasedOnce) {
  const MemoryHandle handle = Create(unit());
  EXPECT_THAT(driver().Release(handle), IsOk());
  EXPECT_THAT(driver().Release(handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Release(MemoryHandle()), HasReason(kInvalid));
  EXPECT_THAT(driver().Export(handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(Reserve(unit()), unit(), handle), HasReason(kInvalid));
}

TEST_P(DriverContractTest, MemoryIsFreeWithItsLastReference) {
  const Bytes before = FreeMemory();
  const auto expect_used = [&] { EXPECT_LE(FreeMemory(), before - block() + Slack()); };
  const MemoryHandle handle = Create(block());
  const DeviceAddress address = Reserve(block());
  UniqueFd fd = *driver().Export(handle);
  UniqueFd copy = *fd.Duplicate();
  const MemoryHandle import = *driver().Import(fd.get(), block());
  EXPECT_THAT(driver().Map(address, block(), handle), IsOk());
  expect_used();
  EXPECT_THAT(driver().Release(handle), IsOk());
  expect_used();
  EXPECT_THAT(driver().Unmap(address, block()), IsOk());
  expect_used();
  fd.Reset();
  expect_used();
  EXPECT_THAT(driver().Release(import), IsOk());
  expect_used();
  copy.Reset();
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

TEST_P(DriverContractTest, AMappingKeepsMemory) {
  const Bytes before = FreeMemory();
  const DeviceAddress address = MapNew(block());  // the handle is released
  Fill(address, block(), 9);
  EXPECT_LE(FreeMemory(), before - block() + Slack());
  EXPECT_EQ(ByteOf(address, block()), 9);
  EXPECT_THAT(driver().Unmap(address, block()), IsOk());
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

// ---- Export and import

TEST_P(DriverContractTest, ImportIsTheSameMemory) {
  const MemoryHandle handle = Create(unit() * 2);
  const UniqueFd fd = *driver().Export(handle);
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  const auto first = driver().Import(fd.get(), unit() * 2);
  const auto second = driver().Import(fd.get(), unit() * 2);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_NE(::fcntl(fd.get(), F_GETFD), -1) << "Import borrows the descriptor";
  std::vector<DeviceAddress> addresses;
  for (const MemoryHandle each : {handle, *first, *second}) {
    addresses.push_back(Reserve(unit() * 2));
    MapWithAccess(addresses.back(), unit() * 2, each);
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    const auto byte = static_cast<uint8_t>(i + 1);
    Fill(addresses[i], unit() * 2, byte);
    for (const DeviceAddress address : addresses) EXPECT_EQ(ByteOf(address, unit() * 2), byte);
  }
}

TEST_P(DriverContractTest, AnImportIsNotExported) {
  const MemoryHandle handle = Create(unit());
  const UniqueFd fd = *driver().Export(handle);
  const MemoryHandle import = *driver().Import(fd.get(), unit());
  EXPECT_THAT(driver().Export(import), HasReason(kInvalid));
  EXPECT_THAT(driver().Export(handle), IsOk());
}

TEST_P(DriverContractTest, ImportRefusesWhatIsNoMemory) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(driver().Import(null.get(), unit()).ok());
  EXPECT_FALSE(driver().Import(-1, unit()).ok());
  const UniqueFd fd = *driver().Export(Create(unit()));
  EXPECT_FALSE(driver().Import(fd.get(), Bytes(0)).ok());
  EXPECT_FALSE(driver().Import(fd.get(), unit() - Bytes(1)).ok());
  EXPECT_THAT(driver().Import(fd.get(), unit()), IsOk());
}

// ---- Mappings

TEST_P(DriverContractTest, OnlyWholeHandlesAreMapped) {
  const DeviceAddress address = Reserve(unit() * 8);
  const MemoryHandle handle = Create(unit() * 2);
  EXPECT_THAT(driver().Map(address, unit(), handle), HasReason("DRIVER_NOT_SUPPORTED"));
  EXPECT_THAT(driver().Map(address, unit(), handle), HasCode(Code::kUnimplemented));
  EXPECT_THAT(driver().Map(address, unit() * 3, handle), HasReason("DRIVER_NOT_SUPPORTED"));
  EXPECT_THAT(driver().Map(address, Bytes(0), handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address, unit() + Bytes(4096), handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address + Bytes(4096), unit() * 2, handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address, unit() * 2, handle), IsOk());
}

TEST_P(DriverContractTest, OnlyFreeAddressesAreMapped) {
  const DeviceAddress address = Reserve(unit() * 4);
  const MemoryHandle handle = Create(unit() * 2);
  EXPECT_THAT(driver().Map(DeviceAddress(unit().size()), unit() * 2, handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address, unit() * 2, handle), IsOk());
  EXPECT_THAT(driver().Map(address, unit() * 2, handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address + unit(), unit() * 2, handle), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address + unit() * 2, unit() * 2, handle), IsOk());
  EXPECT_THAT(driver().SetAccess(address, unit() * 4, Access::kReadWrite), IsOk());
  Fill(address, unit() * 2, 5);
  EXPECT_EQ(ByteOf(address + unit() * 2, unit() * 2), 5);
}

TEST_P(DriverContractTest, OneMappingMayCrossAdjacentReservations) {
  const DeviceAddress both = Reserve(unit() * 16);
  ASSERT_THAT(driver().FreeAddresses(both, unit() * 16), IsOk());
  // Address space is handed out in order: a few tries give neighbours.
  std::vector<DeviceAddress> addresses;
  addresses.reserve(16);
  for (int i = 0; i < 16; ++i) addresses.push_back(Reserve(unit()));
  for (const DeviceAddress first : addresses) {
    for (const DeviceAddress second : addresses) {
      if (second != first + unit()) continue;
      const MemoryHandle handle = Create(unit() * 2);
      MapWithAccess(first, unit() * 2, handle);
      Fill(first, unit() * 2, 4);
      EXPECT_EQ(ByteOf(first, unit() * 2), 4);
      EXPECT_THAT(driver().FreeAddresses(first, unit()), HasReason(kInvalid));
      EXPECT_THAT(driver().FreeAddresses(second, unit()), HasReason(kInvalid));
      EXPECT_THAT(driver().Unmap(first, unit() * 2), IsOk());
      EXPECT_THAT(driver().FreeAddresses(first, unit()), IsOk());
      return;
    }
  }
  GTEST_SKIP() << "no two reservations are neighbours";
}

TEST_P(DriverContractTest, AccessNeedsAMapping) {
  const DeviceAddress address = Reserve(unit() * 4);
  const auto set = [&](Bytes offset, Bytes size) {
    return driver().SetAccess(address + offset, size, Access::kReadWrite);
  };
  EXPECT_THAT(set(Bytes(0), unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().Map(address + unit(), unit(), Create(unit())), IsOk());
  EXPECT_THAT(set(Bytes(0), unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(set(unit(), unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(set(unit(), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(set(unit(), unit()), IsOk());
  EXPECT_THAT(driver().Unmap(address + unit(), unit()), IsOk());
  EXPECT_THAT(set(unit(), unit()), HasReason(kInvalid));
}

TEST_P(DriverContractTest, AccessIsThatOfWholeMappings) {
  const DeviceAddress address = Reserve(unit() * 4);
  const auto set = [&](Bytes offset, Bytes size) {
    return driver().SetAccess(address + offset, size, Access::kReadWrite);
  };
  EXPECT_THAT(driver().Map(address, unit() * 2, Create(unit() * 2)), IsOk());
  EXPECT_THAT(driver().Map(address + unit() * 2, unit() * 2, Create(unit() * 2)), IsOk());
  EXPECT_THAT(set(Bytes(0), unit()), HasReason(kInvalid));
  EXPECT_THAT(set(unit(), unit()), HasReason(kInvalid));
  EXPECT_THAT(set(Bytes(0), unit() * 3), HasReason(kInvalid));
  EXPECT_THAT(set(Bytes(0), unit() * 4), IsOk());
}

TEST_P(DriverContractTest, AccessAndUnmapSpanNeighbours) {
  const DeviceAddress address = Reserve(unit() * 6);
  EXPECT_THAT(driver().Map(address, unit(), Create(unit())), IsOk());
  EXPECT_THAT(driver().Map(address + unit(), unit() * 2, Create(unit() * 2)), IsOk());
  EXPECT_THAT(driver().Map(address + unit() * 3, unit() * 3, Create(unit() * 3)), IsOk());
  EXPECT_THAT(driver().SetAccess(address, unit() * 6, Access::kReadWrite), IsOk());
  Fill(address, unit() * 6, 6);
  EXPECT_THAT(driver().Unmap(address, unit() * 3), IsOk());
  EXPECT_EQ(ByteOf(address + unit() * 3, unit() * 3), 6);
  // One new handle over the range of two old ones.
  MapWithAccess(address, unit() * 3, Create(unit() * 3));
  EXPECT_EQ(ByteOf(address, unit() * 3), 0);
  EXPECT_THAT(driver().Unmap(address, unit() * 6), IsOk());
}

TEST_P(DriverContractTest, OnlyWholeMappingsAreUnmapped) {
  const DeviceAddress address = Reserve(unit() * 6);
  MapWithAccess(address, unit() * 2, Create(unit() * 2));
  MapWithAccess(address + unit() * 2, unit() * 2, Create(unit() * 2));
  Fill(address, unit() * 4, 8);
  EXPECT_THAT(driver().Unmap(address, unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address + unit(), unit()), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address, unit() * 3), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address + unit(), unit() * 3), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address, unit() * 6), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address + unit() * 4, unit() * 2), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address, Bytes(0)), HasReason(kInvalid));
  EXPECT_EQ(ByteOf(address, unit() * 4), 8) << "what fails changes nothing";
  EXPECT_THAT(driver().Unmap(address, unit() * 4), IsOk());
  EXPECT_THAT(driver().Unmap(address, unit() * 4), HasReason(kInvalid));
  EXPECT_THAT(driver().Unmap(address, unit() * 2), HasReason(kInvalid));
}

TEST_P(DriverContractTest, MappingsOfOneHandleShareBytes) {
  const MemoryHandle handle = Create(unit() * 2);
  const DeviceAddress one = Reserve(unit() * 2);
  const DeviceAddress two = Reserve(unit() * 2);
  MapWithAccess(one, unit() * 2, handle);
  MapWithAccess(two, unit() * 2, handle);
  Fill(one, unit() * 2, 1);
  Fill(two + unit(), unit(), 2);
  EXPECT_EQ(ByteOf(two, unit()), 1);
  EXPECT_EQ(ByteOf(one + unit(), unit()), 2);
  EXPECT_THAT(driver().Unmap(one, unit() * 2), IsOk());
  EXPECT_EQ(ByteOf(two, unit()), 1);
}

TEST_P(DriverContractTest, AHandedOverHandleKeepsItsBytes) {
  const MemoryHandle handle = Create(block());
  const DeviceAddress old_place = Reserve(block());
  const DeviceAddress new_place = Reserve(block());
  MapWithAccess(old_place, block(), handle);
  Fill(old_place, block(), 0x77);
  EXPECT_THAT(driver().Unmap(old_place, block()), IsOk());
  MapWithAccess(new_place, block(), handle);
  EXPECT_EQ(ByteOf(new_place, block()), 0x77);
  EXPECT_THAT(driver().Clear(stream(), new_place, block()), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
  EXPECT_EQ(ByteOf(new_place, block()), 0);
}

TEST_P(DriverContractTest, ReadOnlyIsReadable) {
  const MemoryHandle handle = Create(unit());
  const DeviceAddress writable = Reserve(unit());
  const DeviceAddress readable = Reserve(unit());
  MapWithAccess(writable, unit(), handle);
  MapWithAccess(readable, unit(), handle, Access::kReadOnly);
  Fill(writable, unit(), 0x21);
  EXPECT_EQ(ByteOf(readable, unit()), 0x21);
  EXPECT_THAT(driver().SetAccess(readable, unit(), Access::kReadWrite), IsOk());
  Fill(readable, unit(), 0x22);
  EXPECT_EQ(ByteOf(writable, unit()), 0x22);
}

TEST_P(DriverContractTest, ManyThreadsAtOnce) {
  const Bytes before = FreeMemory();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      const StreamId stream = *driver().CreateStream();
      for (int round = 0; round < 10; ++round) {
        const DeviceAddress address = MapNew(unit() * 2);
        const auto byte = static_cast<uint8_t>(16 * thread + round + 1);
        const std::vector<uint8_t> out(2 * unit().size(), byte);
        std::vector<uint8_t> in(2 * unit().size());
        EXPECT_THAT(driver().CopyToDevice(stream, address, out.data(), unit() * 2), IsOk());
        EXPECT_THAT(driver().CopyToHost(stream, in.data(), address, unit() * 2), IsOk());
        EXPECT_THAT(Wait(stream), IsOk());
        EXPECT_EQ(in, out);
        EXPECT_THAT(driver().Unmap(address, unit() * 2), IsOk());
        EXPECT_THAT(driver().FreeAddresses(address, unit() * 2), IsOk());
        EXPECT_THAT(driver().GetMemoryInfo(), IsOk());
      }
      EXPECT_THAT(driver().DestroyStream(stream), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

}  // namespace
}  // namespace torpor
