// A session whose daemon dies and comes back.
#include "client/reconnect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/session_fixture.h"

namespace torpor::client {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class ReconnectTest : public SessionTest {
 protected:
  ReconnectTest() { ConnectWithGrace(std::chrono::hours(1)); }

  void ConnectWithGrace(milliseconds grace, Session::Options options = {}) {
    session_ = nullptr;
    daemon_.AwaitHellos(1);
    const size_t before = daemon_.hellos();
    daemon_.SetGrace(grace);
    Connect(std::move(options));
    daemon_.AwaitHellos(before + 1);
  }

  static Status Refusal() { return Unavailable("DAEMON_STOPPING", "not yet"); }

  // Whether all memory of the device is free once the session and the daemon have let go.
  void ExpectNothingIsLeft() {
    session_ = nullptr;
    daemon_.Lose("weights");
    daemon_.Lose("kv_cache");
    EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
  }
};

TEST_F(ReconnectTest, SaysWhoItWasAndWhatItHas) {
  Session::Options options;
  options.name = "engine-0";
  options.device_uuid = "fake-device";
  options.reservation = "r1";
  ConnectWithGrace(seconds(3600), options);
  ASSERT_THAT(session_->SetQuiesce(wire::Quiesce::kGuard), IsOk());
  ASSERT_THAT(session_->SetSleepEndpoint("POST /sleep"), IsOk());
  Allocate("weights", kUnit);
  EXPECT_THAT(session_->Free(Allocate("weights", kUnit)), IsOk());
  Allocate("kv_cache", kUnit);
  daemon_.Restart();
  EXPECT_THAT(session_->Usage(), IsOk());  // comes after the endpoint
  const wire::Hello hello = daemon_.hello();
  EXPECT_EQ(hello.name, "engine-0");
  EXPECT_EQ(hello.device_uuid, "fake-device");
  EXPECT_EQ(hello.reservation, "r1");
  EXPECT_EQ(hello.quiesce, wire::Quiesce::kGuard);
  EXPECT_EQ(hello.session, session_->hello().worker);
  EXPECT_EQ(hello.secret, session_->hello().secret);
  EXPECT_THAT(hello.segments, testing::SizeIs(2));
  EXPECT_EQ(daemon_.sleep_endpoint(), "POST /sleep");

  ASSERT_THAT(session_->OnPause({[] { return 0; }, [] {}}), IsOk());
  daemon_.Restart();
  EXPECT_EQ(daemon_.hello().quiesce, wire::Quiesce::kCallback);
}

TEST_F(ReconnectTest, WorkGoesOnWhileTheDaemonIsAway) {
  const DeviceAddress address = Allocate("weights", kUnit);
  daemon_.Disappear();
  EXPECT_THAT(session_->WorkBegin({}, std::nullopt), IsOk());
  Memory(address)[0] = 5;
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(session_->Find(address), IsOk());
  daemon_.Appear();
  EXPECT_THAT(session_->Usage(), IsOk());
  EXPECT_EQ(Memory(address)[0], 5);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  EXPECT_THAT(Begin({}), HasReason("ASLEEP"));
}

TEST_F(ReconnectTest, RequestsMadeMeanwhileComeThrough) {
  const DeviceAddress old = Allocate("weights", kUnit);
  daemon_.Disappear();
  std::thread allocate([&] { Memory(Allocate("weights", kUnit))[0] = 1; });
  std::thread wait([&] {
    EXPECT_THAT(session_->AllocateWait("kv_cache", kUnit, int64_t{3600} * 1000), IsOk());
  });
  std::thread free([&] { EXPECT_THAT(session_->Free(old), IsOk()); });
  std::thread sleep([&] { EXPECT_THAT(session_->Sleep({}), IsOk()); });
  std::thread report([&] { EXPECT_THAT(session_->ReportUsage(MiB(1), MiB(2)), IsOk()); });
  std::this_thread::yield();
  daemon_.Appear();
  for (std::thread* thread : {&allocate, &wait, &free, &sleep, &report}) thread->join();
  EXPECT_EQ(daemon_.ExtentCount(), 2u);
  EXPECT_EQ(daemon_.report().live, MiB(1));
}

TEST_F(ReconnectTest, AnAllocationBeginsAnewWhereverItWas) {
  for (const wire::Type type : {wire::Type::kAllocate, wire::Type::kAllocated}) {
    for (const bool before : {true, false}) {
      const size_t hellos = daemon_.hellos();
      daemon_.DieAt(type, before);
      const DeviceAddress address = Allocate("weights", kUnit);
      EXPECT_EQ(daemon_.hellos(), hellos + 1);
      Memory(address)[0] = 1;
      // Of the first attempt nothing is left, here or there.
      EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal - kUnit);
      const auto mapped = daemon_.Cancel(kOperation);
      ASSERT_THAT(mapped, IsOk());
      EXPECT_THAT(*mapped, testing::SizeIs(1));
      EXPECT_THAT(session_->Free(address), IsOk());
      EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
    }
  }
}

TEST_F(ReconnectTest, AFreeIsRepeated) {
  for (const bool before : {true, false}) {
    const DeviceAddress kept = Allocate("weights", kUnit);
    const DeviceAddress address = Allocate("weights", kUnit);
    daemon_.DieAt(wire::Type::kFree, before);
    EXPECT_THAT(session_->Free(address), IsOk());
    EXPECT_THAT(session_->Find(address), HasReason("UNKNOWN_ADDRESS"));
    EXPECT_THAT(daemon_.hello().segments, testing::SizeIs(1));
    Memory(kept)[0] = 1;
    EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal - kUnit);
    EXPECT_THAT(session_->Free(kept), IsOk());
    EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
  }
}

TEST_F(ReconnectTest, AFreeThatIsPutOffIsStillToBeAskedFor) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->Free(address), IsOk());  // put off
  daemon_.Restart();
  EXPECT_THAT(daemon_.hello().segments, testing::SizeIs(1));
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_EQ(daemon_.requests(wire::Type::kFree), 1u);
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(ReconnectTest, TheNextDaemonHearsWhatWasUnmapped) {
  const DeviceAddress address = Allocate("weights", kUnit);
  daemon_.DieAt(wire::Type::kFreed, true);
  EXPECT_THAT(session_->Free(address), IsOk());
  while (daemon_.requests(wire::Type::kFreed) < 2) std::this_thread::yield();
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(ReconnectTest, ExtentsThatOthersLiveInStay) {
  // Two segments of one extent, as when a freed part is used again.
  daemon_.ShareNextExtent();
  const DeviceAddress first = Allocate("weights", kUnit);
  const DeviceAddress second = Allocate("weights", kUnit);
  ASSERT_EQ(second, first + kUnit);
  daemon_.DieAt(wire::Type::kFree, false);
  EXPECT_THAT(session_->Free(first), IsOk());
  Memory(second)[0] = 1;
  daemon_.DieAt(wire::Type::kFree, false);
  EXPECT_THAT(session_->Free(second), IsOk());
  ExpectNothingIsLeft();
}

TEST_F(ReconnectTest, ASleepIsRepeated) {
  for (const bool before : {true, false}) {
    daemon_.DieAt(wire::Type::kSleep, before);
    wire::Sleep sleep;
    sleep.level = 1;
    sleep.timeout_ms = 3600 * 1000;
    const auto slept = session_->Sleep(sleep);
    ASSERT_THAT(slept, IsOk());
    EXPECT_EQ(slept->device, MiB(1));
    EXPECT_LE(daemon_.last_sleep().timeout_ms, sleep.timeout_ms);
    EXPECT_GT(daemon_.last_sleep().timeout_ms, 0);
  }
  EXPECT_EQ(daemon_.requests(wire::Type::kSleep), 4u);
}

TEST_F(ReconnectTest, ADaemonThatIsStoppingIsOnItsWay) {
  daemon_.StopAt(wire::Type::kReport);
  std::thread report([&] { EXPECT_THAT(session_->ReportUsage(MiB(1), MiB(2)), IsOk()); });
  while (daemon_.requests(wire::Type::kReport) < 1) std::this_thread::yield();
  daemon_.Restart();
  report.join();
  EXPECT_EQ(daemon_.report().live, MiB(1));
}

TEST_F(ReconnectTest, ADeadlinePassesWhileTheDaemonIsAway) {
  daemon_.Disappear();
  wire::Sleep sleep;
  sleep.timeout_ms = 20;
  EXPECT_THAT(session_->Sleep(sleep), HasReason("DAEMON_SILENT"));
  EXPECT_THAT(session_->AllocateWait("weights", kUnit, 20), HasReason("DAEMON_SILENT"));
  daemon_.Appear();
  EXPECT_THAT(session_->Sleep({}), IsOk());
}

TEST_F(ReconnectTest, AfterTheGraceTimeNothingIsExpectedAnyMore) {
  ConnectWithGrace(milliseconds(100));
  const DeviceAddress address = Allocate("weights", kUnit);
  Memory(address)[0] = 5;
  Allocate("kv_cache", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("kv_cache"));
  std::thread waiting(
      [&] { EXPECT_THAT(session_->WorkBegin({}, std::nullopt), HasReason("DAEMON_GONE")); });
  daemon_.Disappear();
  const Status status = session_->Usage().status();
  EXPECT_THAT(status, HasReason("DAEMON_GONE"));
  EXPECT_EQ(status.Number("grace_ms"), 100);
  EXPECT_EQ(status.details().count("cause"), 1u);
  waiting.join();
  EXPECT_THAT(session_->Free(address), HasReason("DAEMON_GONE"));
  EXPECT_THAT(session_->WorkBegin({"weights"}, std::nullopt), IsOk());
  EXPECT_EQ(Memory(address)[0], 5);
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(ReconnectTest, ARefusedSessionIsLost) {
  daemon_.RefuseHellos(NotFound("UNKNOWN_SESSION", "never heard of it"));
  daemon_.Hangup();
  const Status status = session_->Usage().status();
  EXPECT_THAT(status, HasReason("DAEMON_GONE"));
  EXPECT_EQ(status.details().at("cause"), "UNKNOWN_SESSION");
}

TEST_F(ReconnectTest, OneThatCannotTakeItNowIsAskedAgain) {
  const DeviceAddress address = Allocate("weights", kUnit);
  for (const Status& refusal : {Refusal(), ResourceExhausted("THREADS_EXHAUSTED", "none left"),
                                ResourceExhausted("FILE_DESCRIPTORS_EXHAUSTED", "none left"),
                                ResourceExhausted("TOO_MANY_WORKERS", "others were faster")}) {
    const size_t before = daemon_.requests(wire::Type::kHello);
    daemon_.RefuseHellos(refusal);
    daemon_.Hangup();
    std::thread asking([&] { EXPECT_THAT(session_->Usage(), IsOk()); });
    while (daemon_.requests(wire::Type::kHello) < before + 3) std::this_thread::yield();
    daemon_.RefuseHellos(Status::Ok());
    asking.join();
  }
  EXPECT_THAT(session_->Free(address), IsOk());
}

TEST_F(ReconnectTest, OneThatNeverCanTakeItIsGivenUpAfterTheGraceTime) {
  ConnectWithGrace(milliseconds(300));
  const size_t before = daemon_.requests(wire::Type::kHello);
  daemon_.RefuseHellos(ResourceExhausted("THREADS_EXHAUSTED", "none left"));
  daemon_.Hangup();
  const Status status = session_->Usage().status();
  EXPECT_THAT(status, HasReason("DAEMON_GONE"));
  EXPECT_EQ(status.Number("grace_ms"), 300);
  EXPECT_GT(daemon_.requests(wire::Type::kHello), before);
}

TEST_F(ReconnectTest, ADaemonMayDieAgainAndAgain) {
  const DeviceAddress address = Allocate("weights", kUnit);
  for (const bool before : {true, false}) {
    daemon_.DieAt(wire::Type::kHello, before);
    daemon_.Hangup();
    EXPECT_THAT(session_->Usage(), IsOk());
  }
  daemon_.Restart();
  daemon_.Restart();
  EXPECT_THAT(daemon_.hello().segments, testing::SizeIs(1));
  EXPECT_THAT(session_->Free(address), IsOk());
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(ReconnectTest, LostSegmentsStayUsable) {
  daemon_.SetExtentSize(kUnit);
  const DeviceAddress lost = Allocate("weights", kUnit * 2);
  const DeviceAddress kept = Allocate("kv_cache", kUnit);
  const std::vector<wire::Extent> extents = daemon_.Extents("weights");
  Memory(lost)[0] = 5;
  daemon_.Lose("weights");
  daemon_.Restart();
  EXPECT_THAT(session_->Usage(), IsOk());
  EXPECT_THAT(session_->Find(lost), IsOk());
  // The daemon neither hears of them nor takes them away.
  const auto mapped = daemon_.Cancel(kOperation);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_THAT(*mapped, ElementsAre(daemon_.Extents("kv_cache").front().id));
  EXPECT_THAT(daemon_.UnmapAnywhere(kOther, extents), IsOk());
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_EQ(Memory(lost)[0], 5);
  Memory(lost)[kUnit.value()] = 6;
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  daemon_.Restart();
  EXPECT_THAT(daemon_.hello().segments, testing::SizeIs(1));

  const size_t asked = daemon_.requests(wire::Type::kFree);
  EXPECT_THAT(session_->Free(lost), IsOk());
  EXPECT_EQ(daemon_.requests(wire::Type::kFree), asked);
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal - kUnit);
  EXPECT_THAT(session_->Free(kept), IsOk());
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(ReconnectTest, WorkIsKeptFromWhatWasLostHalfAwake) {
  Allocate("weights", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  daemon_.RenewMemory("weights");
  ASSERT_THAT(daemon_.Map(kOperation, "weights"), IsOk());
  // It is mapped, but nobody has said that its bytes are there.
  daemon_.Lose("weights");
  daemon_.Restart();
  ASSERT_THAT(daemon_.Resume(kOperation, {}), IsOk());
  EXPECT_THAT(Begin({"weights"}), HasReason("SEGMENTS_LOST"));
}

TEST_F(ReconnectTest, WorkIsKeptFromWhatWasLostAsleep) {
  const DeviceAddress lost = Allocate("weights", kUnit);
  Allocate("kv_cache", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  std::thread waiting([&] {
    const Status status = session_->WorkBegin({}, std::nullopt);
    EXPECT_THAT(status, HasReason("SEGMENTS_LOST"));
    EXPECT_THAT(status, HasCode(Code::kDataLoss));
    EXPECT_EQ(status.details().at("lost_tags"), "weights");
  });
  daemon_.Lose("weights");
  daemon_.Restart();
  waiting.join();
  ASSERT_THAT(daemon_.Resume(kOperation, {}), IsOk());
  EXPECT_THAT(Begin({"weights"}), HasReason("SEGMENTS_LOST"));
  EXPECT_THAT(Begin({"kv_cache"}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(session_->Free(lost), IsOk());
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(ReconnectTest, ExtentsAreUnmappedWhereverTheyAre) {
  Allocate("weights", kUnit);
  Allocate("kv_cache", kUnit);
  std::vector<wire::Extent> extents = daemon_.Extents("weights");
  extents.push_back(daemon_.Extents("kv_cache").front());
  for (wire::Extent& extent : extents) extent.offset = extent.size = Bytes(0);  // unknown to it
  extents.push_back({ExtentId(4711), Bytes(0), Bytes(0)});
  daemon_.Restart();
  driver_->ResetCounts();
  EXPECT_THAT(daemon_.UnmapAnywhere(kOperation, extents), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 1);  // they may have been in use
  const auto mapped = daemon_.Cancel(kOperation);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_THAT(*mapped, IsEmpty());
}

TEST_F(ReconnectTest, WhatSleepsIsWaitedFor) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  ASSERT_THAT(daemon_.Resume(kOperation, {"weights"}), IsOk());  // a high revision
  std::atomic<bool> entered{false};
  std::thread waiting([&] {
    EXPECT_THAT(session_->WorkBegin({}, std::nullopt), IsOk());
    entered = true;
    Memory(address)[0] = 1;
    EXPECT_THAT(session_->WorkEnd(), IsOk());
  });
  daemon_.Disappear();
  EXPECT_THAT(Begin({"weights"}), HasReason("ASLEEP"));
  daemon_.Appear();
  daemon_.AwaitHellos(3);
  EXPECT_THAT(Begin({"weights"}), HasReason("ASLEEP"));
  daemon_.RenewMemory("weights");
  ASSERT_THAT(daemon_.Map(kOperation, "weights"), IsOk());
  EXPECT_FALSE(entered);
  ASSERT_THAT(daemon_.Resume(kOperation, {}), IsOk());  // the new daemon's first
  waiting.join();
}

TEST_F(ReconnectTest, ATagUnmappedInPartIsMendedByTheNextDaemon) {
  const DeviceAddress address = Allocate("weights", kUnit);
  const DeviceAddress other = Allocate("kv_cache", kUnit);
  Memory(address)[0] = 5;
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  ASSERT_THAT(daemon_.Unmap(kOperation, "weights"), IsOk());
  daemon_.Restart();
  EXPECT_THAT(session_->WorkBegin({"kv_cache"}, std::nullopt), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(Begin({"weights"}), HasReason("ASLEEP"));
  // By the daemon's books nothing sleeps, which a free may make it say.
  daemon_.SetFreeNamesExtents(false);
  daemon_.SetFreeSaysAsleep({1, {}});
  EXPECT_THAT(session_->Free(other), IsOk());
  EXPECT_THAT(Begin({"weights"}), HasReason("ASLEEP"));
  ASSERT_THAT(daemon_.Map(kOperation, "weights"), IsOk());
  ASSERT_THAT(daemon_.Resume(kOperation, {}), IsOk());
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_EQ(Memory(address)[0], 5);
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(ReconnectTest, AnOperationUnderWayIsOver) {
  std::atomic<int> resumed{0};
  ASSERT_THAT(session_->OnPause({[] { return 0; }, [&] { ++resumed; }}), IsOk());
  Allocate("weights", kUnit);
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  daemon_.Disappear();
  EXPECT_THAT(session_->WorkBegin({}, std::nullopt), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  while (resumed == 0) std::this_thread::yield();
  daemon_.Appear();
  daemon_.AwaitHellos(3);
  // The new daemon counts its operations anew: a cancelled one of the same number is another.
  ASSERT_THAT(daemon_.Cancel(kOther), IsOk());
  daemon_.Restart();
  ASSERT_THAT(daemon_.Quiesce(kOther), IsOk());
  ASSERT_THAT(daemon_.Resume(kOther, {}), IsOk());
  EXPECT_EQ(resumed, 2);
}

TEST_F(ReconnectTest, TheApplicationStaysPausedWhileSomethingSleeps) {
  std::atomic<int> resumed{0};
  ASSERT_THAT(session_->OnPause({[] { return 0; }, [&] { ++resumed; }}), IsOk());
  Allocate("weights", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  daemon_.Restart();
  ASSERT_THAT(daemon_.Cancel(kOperation), IsOk());  // answered after the loss was dealt with
  EXPECT_EQ(resumed, 0);
  daemon_.RenewMemory("weights");
  ASSERT_THAT(daemon_.Map(kOther, "weights"), IsOk());
  ASSERT_THAT(daemon_.Resume(kOther, {}), IsOk());
  EXPECT_EQ(resumed, 1);
}

TEST_F(ReconnectTest, AQuiesceThatWaitsEndsWithItsDaemon) {
  Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  daemon_.StartQuiesce(kOperation);
  std::thread([&] {
    while (Begin({}, milliseconds(1)).ok()) EXPECT_THAT(session_->WorkEnd(), IsOk());
    daemon_.Restart();
    EXPECT_THAT(session_->WorkBegin({}, std::nullopt), IsOk());
    EXPECT_THAT(session_->WorkEnd(), IsOk());
  }).join();
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(daemon_.Quiesce(kOperation), IsOk());
}

TEST_F(ReconnectTest, CallbacksMayAskWhileTheDaemonIsAway) {
  Status allocated;
  ASSERT_THAT(session_->OnPause({[&] {
                                   daemon_.Disappear();
                                   std::thread appear([&] { daemon_.Appear(); });
                                   allocated = session_->Allocate("kv_cache", kUnit).status();
                                   appear.join();
                                   return 0;
                                 },
                                 [] {}}),
              IsOk());
  daemon_.StartQuiesce(kOperation);
  daemon_.AwaitHellos(3);
  ASSERT_THAT(daemon_.Cancel(kOther), IsOk());
  EXPECT_THAT(allocated, IsOk());
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(ReconnectTest, ClosingDoesNotWaitForADaemon) {
  Allocate("weights", kUnit);
  daemon_.Disappear();
  ExpectNothingIsLeft();
}

TEST_F(ReconnectTest, ClosingDoesNotWaitForAHello) {
  daemon_.HoldHellos(true);
  daemon_.Hangup();
  while (daemon_.requests(wire::Type::kHello) < 3) std::this_thread::yield();
  session_ = nullptr;
  daemon_.HoldHellos(false);
}

TEST_F(ReconnectTest, ClosingEndsTheWaitOfACallback) {
  std::atomic<bool> inside{false};
  Status asked;
  Session& session = *session_;
  ASSERT_THAT(session_->OnPause({[&] {
                                   inside = true;
                                   asked = session.Usage().status();
                                   return 0;
                                 },
                                 [] {}}),
              IsOk());
  daemon_.DieAt(wire::Type::kUsage, true);
  daemon_.RefuseHellos(Refusal());
  daemon_.StartQuiesce(kOperation);
  while (!inside) std::this_thread::yield();
  session_ = nullptr;
  EXPECT_THAT(asked, HasReason("DAEMON_GONE"));
}

TEST_F(ReconnectTest, AForkWhileAwayHarmsNothing) {
  const DeviceAddress address = Allocate("weights", kUnit);
  daemon_.Disappear();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = session_->Usage().status().reason() == "FORKED";
    session_ = nullptr;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  daemon_.Appear();
  EXPECT_THAT(session_->Free(address), IsOk());
}

TEST_F(ReconnectTest, AChildDoesNotKeepALaterConnection) {
  daemon_.Restart();
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

TEST_F(ReconnectTest, NothingPilesUp) {
  const auto count = [](const char* dir) {
    return std::distance(std::filesystem::directory_iterator(dir),
                         std::filesystem::directory_iterator());
  };
  const auto turn = [&] {
    daemon_.Restart();
    ASSERT_THAT(daemon_.Cancel(kOperation), IsOk());
    EXPECT_THAT(session_->Usage(), IsOk());
  };
  turn();
  const auto fds = count("/proc/self/fd");
  const auto threads = count("/proc/self/task");
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_EQ(count("/proc/self/fd"), fds);
  EXPECT_EQ(count("/proc/self/task"), threads);
}

}  // namespace
}  // namespace torpor::client
