// What a session does with the daemon's requests.
#include "client/operator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/session_fixture.h"

namespace torpor::client {
namespace {

using OperatorTest = SessionTest;

TEST_F(OperatorTest, MemoryGoesAndComesBackAtTheSameAddress) {
  daemon_.SetExtentSize(kUnit);
  const DeviceAddress address = Allocate("weights", kUnit * 4);
  std::memset(Memory(address), 'x', static_cast<size_t>(kUnit.value()) * 4);
  driver_->ResetCounts();
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
  EXPECT_EQ(driver_->Calls(CallKind::kUnmap), 1);  // one call for neighbours
  EXPECT_THAT(Begin({}), HasReason("ASLEEP"));
  EXPECT_THAT(Begin({"weights"}), HasReason("ASLEEP"));
  EXPECT_THAT(Begin({"kv_cache"}), IsOk());
  EXPECT_THAT(Begin({"weights"}), HasCode(Code::kFailedPrecondition));  // nested: cannot wait
  EXPECT_THAT(session_->WorkEnd(), IsOk());

  std::atomic<bool> entered{false};
  std::thread waiting([&] {
    EXPECT_THAT(session_->WorkBegin({"weights"}, std::nullopt), IsOk());
    entered = true;
    EXPECT_THAT(session_->WorkEnd(), IsOk());
  });
  driver_->ResetCounts();
  daemon_.RenewMemory("weights");
  ASSERT_THAT(daemon_.Map(kOther, "weights"), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSetAccess), 1);
  EXPECT_FALSE(entered);
  ASSERT_THAT(daemon_.Resume(kOther, {}), IsOk());
  waiting.join();
  EXPECT_EQ(Memory(address)[0], 0);
  EXPECT_EQ(Memory(address)[kUnit.size() * 4 - 1], 0);
}

TEST_F(OperatorTest, QuiesceWaitsForTheGuardAndThenSynchronizes) {
  Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  const auto quiesce = daemon_.StartQuiesce(kOperation);
  // The thread that is inside may enter again; another one has to wait.
  std::thread([&] {
    while (Begin({}, milliseconds(1)).ok()) EXPECT_THAT(session_->WorkEnd(), IsOk());
  }).join();
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 0);
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(daemon_.WaitStatus(quiesce), IsOk());
  EXPECT_EQ(driver_->Calls(CallKind::kSynchronize), 1);
  EXPECT_THAT(Begin({}), HasReason("ASLEEP"));
  EXPECT_THAT(daemon_.Resume(kOperation, {}), IsOk());
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(OperatorTest, AllocateAndFreeDoNotWaitForAnOperation) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  const auto quiesce = daemon_.StartQuiesce(kOperation);
  const DeviceAddress other = Allocate("kv_cache", kUnit);
  Memory(other)[0] = 1;
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(daemon_.WaitStatus(quiesce), IsOk());
  EXPECT_THAT(session_->Free(address), IsOk());
  Allocate("weights", kUnit);
  EXPECT_THAT(daemon_.Resume(kOperation, {}), IsOk());
}

TEST_F(OperatorTest, CancelEndsAQuiesceThatWaitsAndWhatIsQueuedBehindIt) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(Begin({}), IsOk());
  const auto quiesce = daemon_.StartQuiesce(kOperation);
  const auto unmap = daemon_.StartUnmap(kOperation, "weights");
  const auto mapped = daemon_.Cancel(kOperation);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_THAT(*mapped, testing::ElementsAre(daemon_.Extents("weights").front().id));
  EXPECT_THAT(daemon_.WaitStatus(quiesce), HasReason("OPERATION_CANCELLED"));
  EXPECT_THAT(daemon_.WaitStatus(unmap), HasCode(Code::kAborted));
  // Obeyed neither now nor later.
  EXPECT_THAT(daemon_.Unmap(kOperation, "weights"), HasReason("OPERATION_CANCELLED"));
  Memory(address)[0] = 1;
  std::thread([&] {
    EXPECT_THAT(Begin({}), IsOk());
    EXPECT_THAT(session_->WorkEnd(), IsOk());
  }).join();
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(OperatorTest, ACancelledOperationStaysQuietUntilAnyResume) {
  Allocate("weights", kUnit);
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  ASSERT_THAT(daemon_.Unmap(kOperation, "weights"), IsOk());
  const auto mapped = daemon_.Cancel(kOperation);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_THAT(*mapped, testing::IsEmpty());
  EXPECT_THAT(Begin({}), HasReason("ASLEEP"));
  EXPECT_THAT(daemon_.Map(kOther, "weights"), IsOk());
  EXPECT_THAT(Begin({}), HasReason("ASLEEP"));
  EXPECT_THAT(daemon_.Resume(kOther, {}), IsOk());
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(OperatorTest, AFailedSynchronizeLeavesTheWorkerRunning) {
  driver_->FailNth(CallKind::kSynchronize, 1, Fault());
  EXPECT_THAT(daemon_.Quiesce(kOperation), HasReason("FAULT"));
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(OperatorTest, MapIsAllOrNothing) {
  daemon_.SetExtentSize(kUnit);
  const DeviceAddress address = Allocate("weights", kUnit * 3);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  daemon_.RenewMemory("weights");
  uint64_t operation = 2000;
  for (int n = 1;; ++n) {
    driver_->FailNth(std::nullopt, n, Fault());
    const Status status = daemon_.Map(OperationId(++operation), "weights");
    const bool reached = driver_->ClearFaults() == 0;
    const auto mapped = daemon_.Cancel(OperationId(operation));
    ASSERT_THAT(mapped, IsOk());
    EXPECT_THAT(*mapped, testing::SizeIs(status.ok() ? 3 : 0)) << n;
    if (status.ok()) {
      Memory(address)[0] = 1;
      EXPECT_THAT(daemon_.Unmap(OperationId(++operation), "weights"), IsOk());
    }
    if (!reached) break;
  }
  daemon_.DropMemory("weights");
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(OperatorTest, WhatIsMappedIsPassedOver) {
  daemon_.SetExtentSize(kUnit);
  const DeviceAddress address = Allocate("weights", kUnit * 2);
  Memory(address)[0] = 7;
  driver_->ResetCounts();
  EXPECT_THAT(daemon_.Map(kOperation, "weights"), IsOk());
  EXPECT_EQ(driver_->Calls(std::nullopt), 0);
  EXPECT_EQ(Memory(address)[0], 7);
  EXPECT_THAT(daemon_.Unmap(kOperation, "weights"), IsOk());
  EXPECT_THAT(daemon_.Unmap(kOperation, "weights"), IsOk());
  EXPECT_THAT(daemon_.Unmap(kOperation, "never_used"), IsOk());
  daemon_.DropMemory("weights");
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

// This process has no room for another descriptor.
class NoRoom {
 public:
  NoRoom() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none{0, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoRoom() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST_F(OperatorTest, AMapWithoutRoomForItsDescriptorsIsRefusedAndTheSessionGoesOn) {
  daemon_.SetExtentSize(kUnit);
  const DeviceAddress address = Allocate("weights", kUnit * 3);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  daemon_.RenewMemory("weights");
  {
    const NoRoom no_room;
    EXPECT_THAT(daemon_.Map(kOther, "weights"), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  }
  ASSERT_THAT(daemon_.Map(kOther, "weights"), IsOk());
  ASSERT_THAT(daemon_.Resume(kOther, {}), IsOk());
  Memory(address)[0] = 1;
}

TEST_F(OperatorTest, AFailedUnmapIsReportedAndRecorded) {
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  driver_->FailNth(CallKind::kUnmap, 1, Fault());
  EXPECT_THAT(daemon_.Unmap(kOperation, "weights"), HasReason("FAULT"));
  const auto mapped = daemon_.Cancel(kOperation);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_THAT(*mapped, testing::SizeIs(1));
  EXPECT_THAT(daemon_.Resume(kOther, {}), IsOk());
  Memory(address)[0] = 1;
}

TEST_F(OperatorTest, AHandleThatCannotBeReleasedIsReleasedWithTheMapping) {
  Allocate("weights", kUnit);
  ASSERT_NO_FATAL_FAILURE(PutToSleep("weights"));
  daemon_.RenewMemory("weights");
  driver_->FailNth(CallKind::kRelease, 1, Fault());
  EXPECT_THAT(daemon_.Map(kOther, "weights"), IsOk());
  EXPECT_THAT(daemon_.Unmap(kOther, "weights"), IsOk());
  daemon_.DropMemory("weights");
  EXPECT_EQ(daemon_.DeviceFree(), FakeDaemon::kTotal);
}

TEST_F(OperatorTest, CallbacksAlternateAndRunElsewhere) {
  std::vector<std::string> calls;
  std::thread::id caller;
  Status sleep_inside;
  Status work_inside;
  ASSERT_THAT(session_->OnPause({[&] {
                                   calls.push_back("pause");
                                   caller = std::this_thread::get_id();
                                   sleep_inside = session_->Sleep({}).status();
                                   work_inside = session_->WorkBegin({}, std::nullopt);
                                   return 0;
                                 },
                                 [&] { calls.push_back("resume"); }}),
              IsOk());
  EXPECT_EQ(daemon_.quiesce(), wire::Quiesce::kCallback);
  Allocate("weights", kUnit);
  Allocate("kv_cache", kUnit);

  ASSERT_NO_FATAL_FAILURE(PutToSleep("kv_cache"));
  EXPECT_THAT(calls, testing::ElementsAre("pause"));
  EXPECT_NE(caller, std::this_thread::get_id());
  EXPECT_THAT(sleep_inside, HasReason("CALLED_FROM_CALLBACK"));
  EXPECT_THAT(work_inside, HasReason("CALLED_FROM_CALLBACK"));

  // A second sleep finds it paused; its roll back leaves kv_cache asleep.
  ASSERT_THAT(daemon_.Quiesce(kOther), IsOk());
  ASSERT_THAT(daemon_.Resume(kOther, {"kv_cache"}), IsOk());
  EXPECT_THAT(calls, testing::ElementsAre("pause"));
  ASSERT_THAT(daemon_.Resume(kOther, {}), IsOk());
  EXPECT_THAT(calls, testing::ElementsAre("pause", "resume"));

  ASSERT_THAT(session_->OnPause({}), IsOk());
  EXPECT_EQ(daemon_.quiesce(), wire::Quiesce::kNone);
  ASSERT_THAT(daemon_.Quiesce(OperationId(5)), IsOk());
  EXPECT_THAT(calls, testing::SizeIs(2));
}

TEST_F(OperatorTest, APauseCallbackMayRefuse) {
  int resumed = 0;
  ASSERT_THAT(session_->OnPause({[] { return 7; }, [&] { ++resumed; }}), IsOk());
  const Status status = daemon_.Quiesce(kOperation);
  EXPECT_THAT(status, HasReason("PAUSE_REFUSED"));
  EXPECT_EQ(status.Number("returned"), 7);
  EXPECT_THAT(daemon_.Cancel(kOperation), IsOk());
  EXPECT_THAT(daemon_.Resume(kOther, {}), IsOk());
  EXPECT_EQ(resumed, 0);
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
}

TEST_F(OperatorTest, CallbacksMayAllocateAndFree) {
  const DeviceAddress address = Allocate("workspace", kUnit);
  Status freed;
  Status allocated;
  ASSERT_THAT(
      session_->OnPause({[&] {
                           freed = session_->Free(address);
                           return 0;
                         },
                         [&] { allocated = session_->Allocate("workspace", kUnit).status(); }}),
      IsOk());
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  ASSERT_THAT(daemon_.Resume(kOperation, {}), IsOk());
  EXPECT_THAT(freed, IsOk());
  EXPECT_THAT(allocated, IsOk());
}

TEST_F(OperatorTest, WorkGoesOnWhenTheDaemonDiesBeforeItUnmapped) {
  int resumed = 0;
  std::atomic<bool> done{false};
  ASSERT_THAT(session_->OnPause({[] { return 0; },
                                 [&] {
                                   ++resumed;
                                   done = true;
                                 }}),
              IsOk());
  const DeviceAddress address = Allocate("weights", kUnit);
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  daemon_.Hangup();
  EXPECT_THAT(session_->WorkBegin({}, std::nullopt), IsOk());
  Memory(address)[0] = 1;
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  while (!done) std::this_thread::yield();
  EXPECT_EQ(resumed, 1);
}

TEST_F(OperatorTest, WorkThatNeedsUnmappedMemoryIsRefusedWhenTheDaemonDies) {
  Allocate("weights", kUnit);
  Allocate("kv_cache", kUnit);
  ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
  ASSERT_THAT(daemon_.Unmap(kOperation, "weights"), IsOk());
  daemon_.Hangup();
  EXPECT_THAT(session_->WorkBegin({"kv_cache"}, std::nullopt), IsOk());
  EXPECT_THAT(session_->WorkEnd(), IsOk());
  EXPECT_THAT(session_->WorkBegin({"weights"}, std::nullopt), HasReason("DAEMON_GONE"));
  EXPECT_THAT(session_->WorkBegin({}, std::nullopt), HasReason("DAEMON_GONE"));
}

TEST_F(OperatorTest, AnUnknownRequestIsAnsweredSo) {
  const auto call = daemon_.channel()->Start(static_cast<wire::Type>(0x2f0), "");
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT(daemon_.WaitStatus(*call), HasReason("UNKNOWN_REQUEST"));
}

TEST_F(OperatorTest, ClosingEndsAQuiesceThatWaits) {
  ASSERT_THAT(Begin({}), IsOk());
  daemon_.StartQuiesce(kOperation);
  std::thread([&] {
    while (Begin({}, milliseconds(1)).ok()) EXPECT_THAT(session_->WorkEnd(), IsOk());
  }).join();
  session_ = nullptr;
}

}  // namespace
}  // namespace torpor::client
