// What holds between processes.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <string>

#include "lib/base/status_matchers.h"
#include "lib/cuda/contract_worker.h"
#include "lib/cuda/driver_contract.h"

namespace torpor {
namespace {

TEST_P(DriverContractTest, AnotherProcessSeesTheBytes) {
  const MemoryHandle handle = Create(block());
  const DeviceAddress address = Reserve(block());
  MapWithAccess(address, block(), handle);
  Fill(address, block(), 0x31);
  const UniqueFd fd = *driver().Export(handle);
  ContractWorker worker(GetParam().name, driver().device(), block());
  ASSERT_EQ(worker.Ask("import-rw", fd.get()), "ok");
  EXPECT_EQ(worker.Ask("read"), "49");
  EXPECT_EQ(worker.Ask("fill 50"), "ok");
  EXPECT_EQ(ByteOf(address, block()), 50);
  EXPECT_NE(worker.Ask("export").find("DRIVER_INVALID_VALUE"), std::string::npos);
}

TEST_P(DriverContractTest, AKilledImporterFreesWhatItHeld) {
  const Bytes before = FreeMemory();
  ContractWorker worker(GetParam().name, driver().device(), block());
  {
    const MemoryHandle handle = Create(block());
    const UniqueFd fd = *driver().Export(handle);
    ASSERT_EQ(worker.Ask("import-rw", fd.get()), "ok");
    EXPECT_THAT(driver().Release(handle), IsOk());
  }
  EXPECT_EQ(worker.Ask("read"), "0");
  EXPECT_LE(FreeMemory(), before - block() + Slack());
  worker.Kill();
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

TEST_P(DriverContractTest, ADescriptorKeepsMemoryInAnyProcess) {
  const Bytes before = FreeMemory();
  const MemoryHandle handle = Create(block());
  UniqueFd fd = *driver().Export(handle);
  ContractWorker keeper(GetParam().name, driver().device(), block());
  ASSERT_EQ(keeper.Ask("keep", fd.get()), "ok");
  fd.Reset();
  EXPECT_THAT(driver().Release(handle), IsOk());
  EXPECT_LE(FreeMemory(), before - block() + Slack());
  keeper.Kill();
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

TEST_P(DriverContractTest, ADescriptorInFlightKeepsMemory) {
  const Bytes before = FreeMemory();
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd sender(pair[0]);
  UniqueFd receiver(pair[1]);
  const MemoryHandle handle = Create(block());
  UniqueFd fd = *driver().Export(handle);
  ASSERT_TRUE(SendText(sender.get(), "x", fd.get()));
  fd.Reset();
  EXPECT_THAT(driver().Release(handle), IsOk());
  EXPECT_LE(FreeMemory(), before - block() + Slack());
  sender.Reset();
  receiver.Reset();
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

TEST_P(DriverContractTest, MemoryOutlivesItsExporter) {
  const Bytes before = FreeMemory();
  UniqueFd fd;
  {
    ContractWorker exporter(GetParam().name, driver().device(), block());
    ASSERT_EQ(exporter.Ask("create", -1, &fd), "ok");
    ASSERT_TRUE(fd.valid());
    exporter.Kill();
  }
  const auto import = driver().Import(fd.get(), block());
  ASSERT_THAT(import, IsOk());
  const DeviceAddress address = Reserve(block());
  MapWithAccess(address, block(), *import);
  EXPECT_EQ(ByteOf(address, block()), 0x5a);
  EXPECT_LE(FreeMemory(), before - block() + Slack());
  // The descriptor goes on to a third process.
  ContractWorker third(GetParam().name, driver().device(), block());
  ASSERT_EQ(third.Ask("import-ro", fd.get()), "ok");
  EXPECT_EQ(third.Ask("read"), "90");
  third.Kill();
  fd.Reset();
  EXPECT_THAT(driver().Release(*import), IsOk());
  EXPECT_THAT(driver().Unmap(address, block()), IsOk());
  EXPECT_GE(FreeMemoryOnce(before), before - Slack());
}

TEST_P(DriverContractTest, ReadOnlyHoldsInAnotherProcess) {
  const MemoryHandle handle = Create(block());
  const DeviceAddress address = Reserve(block());
  MapWithAccess(address, block(), handle);
  Fill(address, block(), 0x44);
  const UniqueFd fd = *driver().Export(handle);
  ContractWorker worker(GetParam().name, driver().device(), block());
  ASSERT_EQ(worker.Ask("import-ro", fd.get()), "ok");
  EXPECT_EQ(worker.Ask("read"), "68");
  EXPECT_NE(worker.Ask("fill 1").find("DRIVER_INVALID_VALUE"), std::string::npos);
  if (GetParam().pointers) {
    EXPECT_EQ(worker.Ask("poke"), "");
    EXPECT_EQ(worker.WaitForDeath(), SIGSEGV);
  }
  EXPECT_EQ(ByteOf(address, block()), 0x44);
}

}  // namespace
}  // namespace torpor
