#include "client/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "client/session_fixture.h"
#include "lib/base/unique_fd.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

int RunInChild(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(SessionTest, SaysHello) {
  session_ = nullptr;
  Session::Options options;
  options.name = "engine-0";
  options.quiesce = wire::Quiesce::kGuard;
  options.reservation = "r1";
  Connect(options);
  daemon_.channel();
  EXPECT_EQ(daemon_.hello().name, "engine-0");
  EXPECT_EQ(daemon_.hello().quiesce, wire::Quiesce::kGuard);
  EXPECT_EQ(daemon_.hello().reservation, "r1");
  EXPECT_EQ(session_->hello().granularity, kUnit);
}

TEST_F(SessionTest, RefusalOfAHelloIsTheCallersError) {
  session_ = nullptr;
  Session::Options options;
  options.socket_path = daemon_.socket_path();
  options.device_uuid = "GPU-1";
  const auto session = Session::Connect(
      options, [](const auto&) -> Result<std::shared_ptr<Driver>> { return Fault(); });
  EXPECT_THAT(session, HasReason("WRONG_DEVICE"));
  EXPECT_EQ(session.status().details().at("worker_device"), "GPU-1");
}

TEST_F(SessionTest, NoDaemon) {
  Session::Options options;
  options.socket_path = "/nonexistent/worker.sock";
  EXPECT_THAT(Session::Connect(
                  options, [](const auto&) -> Result<std::shared_ptr<Driver>> { return Fault(); }),
              HasReason("DAEMON_NOT_RUNNING"));
}

TEST_F(SessionTest, ADaemonThatEndsBeforeItsAnswer) {
  char name[] = "/tmp/torpor-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  Session::Options options;
  options.socket_path = std::string(name) + "/worker.sock";
  Result<UniqueFd> listener = net::ListenUnix(options.socket_path, 0600);
  ASSERT_THAT(listener, IsOk());
  std::thread daemon([&] {
    (void)net::AcceptUnix(listener->get());  // and hangs up, with the hello unread or not yet there
    listener->Reset();
  });
  const auto session = Session::Connect(
      options, [](const auto&) -> Result<std::shared_ptr<Driver>> { return Fault(); });
  daemon.join();
  EXPECT_THAT(session, HasReason("DAEMON_GONE"));
  EXPECT_EQ(session.status().code(), Code::kUnavailable);
  std::filesystem::remove_all(name);
}

TEST_F(SessionTest, AllocatedMemoryIsUsableAndFreedForOthers) {
  daemon_.SetExtentSize(kUnit);
  const DeviceAddress address = Allocate("weights", kUnit * 3 - Bytes(1));
  std::memset(Memory(address), 'x', static_cast<size_t>(kUnit.value()) * 3);
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal - kUnit * 3);

  const auto info = session_->Find(address + kUnit);
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->address, address);
  EXPECT_EQ(info->size, kUnit * 3);
  EXPECT_EQ(info->tag, "weights");
  EXPECT_THAT(session_->Find(address + kUnit * 3), HasReason("UNKNOWN_ADDRESS"));
  EXPECT_THAT(session_->Find(DeviceAddress(~uint64_t{0})), HasReason("UNKNOWN_ADDRESS"));

  EXPECT_THAT(session_->Free(address), IsOk());
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
  EXPECT_THAT(session_->Free(address), HasReason("UNKNOWN_ADDRESS"));
}

TEST_F(SessionTest, FreeTakesOnlyTheStartOfASegment) {
  const DeviceAddress address = Allocate("weights", kUnit);
  const Status status = session_->Free(address + Bytes(1));
  EXPECT_THAT(status, HasCode(Code::kNotFound));
  EXPECT_EQ(status.details().count("address"), 1u);
}

TEST_F(SessionTest, AllocationAfterAFailedOneWorks) {
  EXPECT_THAT(session_->Allocate("weights", Bytes(0)), HasReason("EMPTY_ALLOCATION"));
  EXPECT_THAT(session_->Allocate("weights", FakeDaemon::kTotal * 2),
              HasCode(Code::kResourceExhausted));
  EXPECT_THAT(session_->Allocate("weights", Bytes(-1)), HasCode(Code::kResourceExhausted));
  Allocate("weights", kUnit);
}

TEST_F(SessionTest, ADriverErrorInAllocateLeavesNothing) {
  daemon_.SetExtentSize(kUnit);
  int failures = 0;
  for (int n = 1;; ++n) {
    const std::string tag = "tag" + std::to_string(n);  // a fresh arena each time
    driver_->FailNth(std::nullopt, n, Fault());
    const auto address = session_->Allocate(tag, kUnit * 3);
    const bool reached = driver_->ClearFaults() == 0;
    if (address.ok()) {
      // Only releasing a handle may fail without failing the call; freeing releases it.
      std::memset(Memory(*address), 'x', 3);
      EXPECT_THAT(session_->Free(*address), IsOk());
    } else {
      ++failures;
      EXPECT_THAT(address, HasReason("FAULT"));
      EXPECT_THAT(daemon_.last_allocated(), HasReason("FAULT"));
    }
    EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal) << n;
    EXPECT_EQ(daemon_.ExtentCount(), 0u) << n;
    if (!reached) break;
  }
  EXPECT_EQ(failures, 1 + 3 + 3 + 1);  // reserve, import, map, set access
}

TEST_F(SessionTest, MemoryThatTheDriverWouldNotUnmapFollowsLater) {
  for (const CallKind kind : {CallKind::kSynchronize, CallKind::kUnmap}) {
    const DeviceAddress address = Allocate("weights", kUnit);
    driver_->FailNth(kind, 1, Fault());
    EXPECT_THAT(session_->Free(address), HasReason("FAULT"));
    EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal - kUnit);
    ASSERT_THAT(Begin({}), IsOk());
    ASSERT_THAT(session_->WorkEnd(), IsOk());
    EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
    EXPECT_EQ(daemon_.ExtentCount(), 0u);
  }
}

TEST_F(SessionTest, ACaptureElsewherePutsOffAFree) {
  const DeviceAddress address = Allocate("weights", kUnit);
  driver_->FailNth(CallKind::kSynchronize, 1,
                   FailedPrecondition("STREAM_CAPTURE_ACTIVE", "injected"));
  EXPECT_THAT(session_->Free(address), IsOk());
  EXPECT_EQ(daemon_.ExtentCount(), 1u);
  ASSERT_THAT(Begin({}), IsOk());
  ASSERT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_EQ(daemon_.ExtentCount(), 0u);
}

TEST_F(SessionTest, FreeFromAnotherThread) {
  const DeviceAddress address = Allocate("weights", kUnit);
  std::thread([&] { EXPECT_THAT(session_->Free(address), IsOk()); }).join();
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(SessionTest, FreeInsideTheGuardWaitsForItsEnd) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  ASSERT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->Free(address), IsOk());
  EXPECT_THAT(session_->Free(address), HasReason("UNKNOWN_ADDRESS"));
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 0);
  EXPECT_EQ(daemon_.ExtentCount(), 1u);
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_EQ(daemon_.ExtentCount(), 0u);
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(SessionTest, FreeWhileAnotherThreadIsInsideTheGuardIsLeftToThatOne) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  std::thread([&] { EXPECT_THAT(session_->Free(address), IsOk()); }).join();
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 0);
  EXPECT_EQ(daemon_.ExtentCount(), 1u);
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_EQ(daemon_.ExtentCount(), 0u);
}

TEST_F(SessionTest, FreeWithoutExtentsDoesNotSynchronize) {
  daemon_.SetFreeNamesExtents(false);
  const DeviceAddress address = Allocate("weights", kUnit);
  EXPECT_THAT(session_->Free(address), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 0);
  // The daemon unmaps it, outside of any Quiesce: the worker may still be using it.
  EXPECT_THAT(daemon_.Unmap(kOperation, "weights"), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 1);
  EXPECT_THAT(daemon_.Unmap(kOther, "weights"), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 1);
}

TEST_F(SessionTest, FreeWhileAsleep) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  daemon_.SetFreeNamesExtents(false);
  EXPECT_THAT(session_->Free(address), IsOk());
}

TEST_F(SessionTest, OwnSleepAndWake) {
  wire::Sleep sleep;
  sleep.level = 2;
  sleep.tags = {"a", "b"};
  const auto slept = session_->Sleep(sleep);
  ASSERT_THAT(slept, IsOk());
  EXPECT_EQ(slept->device, MiB(1));
  EXPECT_EQ(daemon_.last_sleep().level, 2);
  EXPECT_THAT(daemon_.last_sleep().tags, testing::ElementsAre("a", "b"));
  wire::WakeUp wake;
  wake.reservation = "r2";
  wake.timeout_ms = 5000;
  EXPECT_THAT(session_->WakeUp(wake), IsOk());
  EXPECT_EQ(daemon_.last_wake_up().reservation, "r2");

  ASSERT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->Sleep(sleep), HasReason("WORK_GUARD_HELD"));
  EXPECT_THAT(session_->WakeUp(wake), HasReason("WORK_GUARD_HELD"));
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(session_->WorkEnd(), HasReason("WORK_GUARD_NOT_HELD"));
}

TEST_F(SessionTest, UsageAndReport) {
  const auto usage = session_->Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_THAT(usage->tags, testing::SizeIs(2));
  EXPECT_THAT(session_->ReportUsage(MiB(3), MiB(4)), IsOk());
  EXPECT_EQ(daemon_.report().live, MiB(3));
  EXPECT_EQ(daemon_.report().reserved, MiB(4));
  EXPECT_THAT(session_->SetQuiesce(wire::Quiesce::kGuard), IsOk());
  EXPECT_EQ(daemon_.quiesce(), wire::Quiesce::kGuard);
  EXPECT_THAT(session_->SetSleepEndpoint("POST http://localhost:8000/sleep"), IsOk());
  EXPECT_EQ(daemon_.sleep_endpoint(), "POST http://localhost:8000/sleep");
}

TEST_F(SessionTest, WithoutADaemonResidentMemoryStays) {
  const DeviceAddress address = Allocate("weights", kUnit);
  Memory(address)[0] = 5;
  daemon_.Hangup();
  Status status;
  while ((status = session_->Usage().status()).ok()) continue;
  EXPECT_THAT(status, HasReason("DAEMON_GONE"));
  EXPECT_THAT(session_->Allocate("weights", kUnit), HasReason("DAEMON_GONE"));
  EXPECT_THAT(session_->Free(address), HasReason("DAEMON_GONE"));
  EXPECT_THAT(session_->Sleep({}), HasReason("DAEMON_GONE"));
  EXPECT_EQ(Memory(address)[0], 5);
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(SessionTest, ABadFrameEndsTheConnection) {
  (void)daemon_.channel()->Start(wire::Type::kQuiesce, "not a quiesce");
  Status status;
  while ((status = session_->Usage().status()).ok()) continue;
  EXPECT_THAT(status, HasReason("DAEMON_GONE"));
  EXPECT_EQ(status.details().at("cause"), "BAD_FRAME");
}

TEST_F(SessionTest, ClosingGivesEverythingBack) {
  Allocate("weights", kUnit * 2);
  Allocate("kv_cache", kUnit);
  session_ = nullptr;
  daemon_.DropMemory("weights");
  daemon_.DropMemory("kv_cache");
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(SessionTest, AForkedChildIsTurnedAwayAndHarmsNothing) {
  const DeviceAddress address = Allocate("weights", kUnit);
  Memory(address)[0] = 9;
  EXPECT_EQ(0, RunInChild([&] {
              const bool refused =
                  session_->Allocate("weights", kUnit).status().reason() == "FORKED" &&
                  session_->Free(address).reason() == "FORKED" &&
                  session_->WorkBegin({}, std::nullopt).reason() == "FORKED" &&
                  session_->Usage().status().reason() == "FORKED";
              session_ = nullptr;
              return refused;
            }));
  EXPECT_EQ(Memory(address)[0], 9);
  EXPECT_THAT(session_->Usage(), IsOk());
}

TEST_F(SessionTest, AForkedChildMayConnectItself) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a child of a process with threads";
#endif
  session_ = nullptr;
  EXPECT_EQ(0, RunInChild([&] {
              Connect();
              const DeviceAddress address = Allocate("weights", kUnit);
              Memory(address)[0] = 1;
              session_ = nullptr;
              return !HasFailure();
            }));
}

TEST_F(SessionTest, AChildDoesNotKeepTheConnection) {
  const auto channel = daemon_.channel();
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::close(hold[1]);
    (void)!::read(hold[0], &byte, 1);
    ::_exit(0);
  }
  session_ = nullptr;
  while (channel->Gone().ok()) std::this_thread::yield();
  ::close(hold[1]);
  ::waitpid(child, nullptr, 0);
  ::close(hold[0]);
}

}  // namespace
}  // namespace torpor::client
