// What is particular to host memory; driver_contract_test has the rest.

#include "lib/cuda/host_driver.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

std::unique_ptr<HostDriver> Device(Bytes total = MiB(64)) {
  return *HostDriver::CreateDevice({"host", total, MiB(2)});
}

int OpenDescriptors() {
  DIR* const dir = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

DeviceAddress MapNew(Driver& driver, Bytes size, Access access = Access::kReadWrite) {
  const DeviceAddress address = *driver.ReserveAddresses(size, Bytes(0));
  const MemoryHandle handle = *driver.Create(size);
  EXPECT_THAT(driver.Map(address, size, handle), IsOk());
  EXPECT_THAT(driver.SetAccess(address, size, access), IsOk());
  EXPECT_THAT(driver.Release(handle), IsOk());
  return address;
}

volatile char* Pointer(DeviceAddress address) {
  return reinterpret_cast<volatile char*>(address.value());
}

// In a death test: sanitizers would make an exit of the signal.
void Store(DeviceAddress address) {
  ::signal(SIGSEGV, SIG_DFL);
  *Pointer(address) = 1;
}

TEST(HostDriverTest, RefusesBadOptions) {
  const HostDriver::DeviceOptions bad[] = {
      {"", MiB(64), MiB(2)},       {"x", MiB(64), Bytes(0)}, {"x", MiB(64), Bytes(4097)},
      {"x", MiB(64), Bytes(2048)}, {"x", MiB(64), KiB(192)}, {"x", MiB(64), Bytes(-4096)},
      {"x", MiB(1), MiB(2)},       {"x", Bytes(-1), MiB(2)},
  };
  for (const auto& options : bad) {
    EXPECT_THAT(HostDriver::CreateDevice(options), HasReason("BAD_DEVICE_OPTIONS"));
  }
  DeviceInfo info = Device()->device();
  EXPECT_THAT(HostDriver::OpenDevice(info), IsOk());
  info.kind = "cuda";
  EXPECT_THAT(HostDriver::OpenDevice(info), HasReason("BAD_DEVICE_OPTIONS"));
}

TEST(HostDriverTest, AUserOnlyImports) {
  const auto owner = Device();
  const auto user = *HostDriver::OpenDevice(owner->device());
  EXPECT_EQ(user->device().uuid, "host");
  EXPECT_THAT(user->Create(MiB(2)), HasReason("HOST_DEVICE_NOT_OWNED"));
  EXPECT_THAT(user->Create(MiB(2)), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(user->GetMemoryInfo(), HasReason("HOST_DEVICE_NOT_OWNED"));
  const UniqueFd fd = *owner->Export(*owner->Create(MiB(2)));
  EXPECT_THAT(user->Import(fd.get(), MiB(2)), IsOk());
}

TEST(HostDriverTest, AUserKeepsTheOwnersMemoryInUse) {
  const auto owner = Device();
  auto user = *HostDriver::OpenDevice(owner->device());
  const MemoryHandle handle = *owner->Create(MiB(4));
  {
    const UniqueFd fd = *owner->Export(handle);
    ASSERT_THAT(user->Import(fd.get(), MiB(4)), IsOk());
  }
  EXPECT_THAT(owner->Release(handle), IsOk());
  EXPECT_EQ(owner->GetMemoryInfo()->free, MiB(60));
  user.reset();
  EXPECT_EQ(owner->GetMemoryInfo()->free, MiB(64));
}

TEST(HostDriverTest, ANewOwnerCountsWhatItImports) {
  UniqueFd fd;
  {
    const auto first = Device();
    fd = *first->Export(*first->Create(MiB(4)));
  }
  const auto second = Device();
  EXPECT_EQ(second->GetMemoryInfo()->free, MiB(64));
  const MemoryHandle one = *second->Import(fd.get(), MiB(4));
  const MemoryHandle two = *second->Import(fd.get(), MiB(4));
  EXPECT_EQ(second->GetMemoryInfo()->free, MiB(60));
  EXPECT_THAT(second->Create(MiB(62)), HasReason("DEVICE_OUT_OF_MEMORY"));
  EXPECT_THAT(second->Release(one), IsOk());
  EXPECT_THAT(second->Release(two), IsOk());
  EXPECT_EQ(second->GetMemoryInfo()->free, MiB(60));
  fd.Reset();
  EXPECT_EQ(second->GetMemoryInfo()->free, MiB(64));
}

TEST(HostDriverTest, OutOfMemoryHasItsNumbers) {
  const auto driver = Device();
  const MemoryHandle most = *driver->Create(MiB(60));
  const Status status = driver->Create(MiB(6)).status();
  EXPECT_EQ(status.Number("requested_bytes"), MiB(6).value());
  EXPECT_EQ(status.Number("available_bytes"), MiB(4).value());
  EXPECT_THAT(driver->Release(most), IsOk());
}

TEST(HostDriverTest, ConcurrentCreationsUseAllMemory) {
  const auto driver = Device();
  std::atomic<int> created{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (driver->Create(MiB(2)).ok()) ++created;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(created, 32);
}

TEST(HostDriverTest, ImportChecksWhatItGets) {
  const auto driver = Device();
  const UniqueFd fd = *driver->Export(*driver->Create(MiB(4)));
  EXPECT_THAT(driver->Import(fd.get(), MiB(2)), HasReason("DRIVER_INVALID_VALUE"));
  // A file that its owner could truncate under a mapping.
  const UniqueFd unsealed(::memfd_create("x", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), MiB(2).value()), 0);
  EXPECT_THAT(driver->Import(unsealed.get(), MiB(2)), HasReason("DRIVER_INVALID_VALUE"));
}

TEST(HostDriverTest, LeavesNoDescriptorsOrMappings) {
  const int before = OpenDescriptors();
  DeviceAddress address;
  {
    const auto driver = Device();
    address = MapNew(*driver, MiB(4));
    const UniqueFd fd = *driver->Export(*driver->Create(MiB(2)));
    ASSERT_THAT(driver->Import(fd.get(), MiB(2)), IsOk());
    const StreamId stream = *driver->CreateStream();
    EXPECT_THAT(driver->Clear(stream, address, MiB(4)), IsOk());
    EXPECT_THAT(driver->RecordEvent(stream), IsOk());
  }
  EXPECT_EQ(OpenDescriptors(), before);
  unsigned char resident[1024];
  EXPECT_NE(::mincore(reinterpret_cast<void*>(address.value()), MiB(4).size(), resident), 0);
}

TEST(HostDriverTest, LackOfDescriptorsIsNoLackOfMemory) {
  const auto driver = Device();
  const MemoryHandle handle = *driver->Create(MiB(2));
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{1, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THAT(driver->Create(MiB(2)), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_THAT(driver->Export(handle), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(driver->Export(handle), IsOk());
  EXPECT_EQ(driver->GetMemoryInfo()->free, MiB(62));
}

TEST(HostDriverTest, AForkedChildInheritsNoMapping) {
  const auto driver = Device();
  const DeviceAddress address = MapNew(*driver, MiB(4));
  *Pointer(address) = 1;
  int looked[2];
  int hold[2];
  ASSERT_EQ(::pipe(looked), 0);
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(hold[1]);
    unsigned char resident[1024];
    void* const range = reinterpret_cast<void*>(address.value());
    char there = ::mincore(range, MiB(4).size(), resident) == 0 ? 1 : 0;
    (void)!::write(looked[1], &there, 1);
    (void)!::read(hold[0], &there, 1);
    ::_exit(0);
  }
  char there = 1;
  EXPECT_EQ(::read(looked[0], &there, 1), 1);
  EXPECT_EQ(there, 0);
  EXPECT_EQ(*Pointer(address), 1);
  EXPECT_THAT(driver->Unmap(address, MiB(4)), IsOk());
  EXPECT_EQ(driver->GetMemoryInfo()->free, MiB(64));
  for (const int fd : {hold[1], hold[0], looked[0], looked[1]}) ::close(fd);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(HostDriverTest, CopiesAreAsynchronousAndStreamsAreIndependent) {
  const auto driver = Device();
  const DeviceAddress address = MapNew(*driver, MiB(2));
  const StreamId slow = *driver->CreateStream();
  const StreamId fast = *driver->CreateStream();
  std::vector<char> host(MiB(2).size());
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(driver->CopyToHost(slow, host.data(), address, MiB(2)), IsOk());
  }
  const EventId late = *driver->RecordEvent(slow);
  char byte = 1;
  EXPECT_THAT(driver->CopyToHost(fast, &byte, address, Bytes(1)), IsOk());
  EXPECT_THAT(driver->WaitEvent(*driver->RecordEvent(fast)), IsOk());
  EXPECT_EQ(byte, 0);
  EXPECT_THAT(driver->WaitEvent(late), IsOk());
}

TEST(HostDriverTest, UnmapUnderARunningCopyFailsTheStream) {
  const auto driver = Device();
  const DeviceAddress address = MapNew(*driver, MiB(32));
  const StreamId stream = *driver->CreateStream();
  std::vector<char> host(MiB(32).size());
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(driver->CopyToDevice(stream, address, host.data(), MiB(32)), IsOk());
  }
  EXPECT_THAT(driver->Unmap(address, MiB(32)), IsOk());
  EXPECT_THAT(driver->WaitEvent(*driver->RecordEvent(stream)), HasReason("DRIVER_ILLEGAL_ADDRESS"));
  EXPECT_EQ(driver->GetMemoryInfo()->free, MiB(64));
  // The error stays with its stream.
  EXPECT_THAT(driver->Synchronize(), HasReason("DRIVER_ILLEGAL_ADDRESS"));
  EXPECT_THAT(driver->DestroyStream(stream), IsOk());
  EXPECT_THAT(driver->Synchronize(), IsOk());
}

TEST(HostDriverTest, SetAccessWaitsForCopies) {
  const auto driver = Device();
  const DeviceAddress address = MapNew(*driver, MiB(32));
  const StreamId stream = *driver->CreateStream();
  std::vector<char> host(MiB(32).size());
  EXPECT_THAT(driver->CopyToDevice(stream, address, host.data(), MiB(32)), IsOk());
  EXPECT_THAT(driver->SetAccess(address, MiB(32), Access::kReadOnly), IsOk());
  // Done before, or refused from there on.
  const Status status = driver->WaitEvent(*driver->RecordEvent(stream));
  EXPECT_TRUE(status.ok() || status.reason() == "DRIVER_ILLEGAL_ADDRESS");
}

TEST(HostDriverDeathTest, MemoryIsNotThereBeforeSetAccess) {
  const auto driver = Device();
  const DeviceAddress address = *driver->ReserveAddresses(MiB(4), Bytes(0));
  EXPECT_EXIT(Store(address), ::testing::KilledBySignal(SIGSEGV), "");
  ASSERT_THAT(driver->Map(address, MiB(2), *driver->Create(MiB(2))), IsOk());
  EXPECT_EXIT(Store(address), ::testing::KilledBySignal(SIGSEGV), "");
  ASSERT_THAT(driver->SetAccess(address, MiB(2), Access::kReadWrite), IsOk());
  *Pointer(address) = 1;
  ASSERT_THAT(driver->Unmap(address, MiB(2)), IsOk());
  EXPECT_EXIT(Store(address), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(HostDriverDeathTest, ReadOnlyMemoryIsNotWritten) {
  const auto driver = Device();
  const DeviceAddress address = MapNew(*driver, MiB(2), Access::kReadOnly);
  EXPECT_EQ(*Pointer(address), 0);
  EXPECT_EXIT(Store(address), ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace torpor
