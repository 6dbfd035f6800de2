// What a daemon makes of a journal that ends between two records.

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "lib/base/clock.h"
#include "lib/base/process.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "lib/cuda/host_driver.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

constexpr WorkerId kWorker{7};

class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = HostDriver::CreateDevice({"host-test", MiB(64), KiB(64)});
    ASSERT_THAT(driver, IsOk());
    driver_ = *std::move(driver);
    Say(SessionOpened{kWorker, "model", "secret"});
  }

  void Say(const JournalRecord& record) {
    recovery_.ledger.Apply(record);
    EXPECT_THAT(keeper_->Record({record}), IsOk());
  }
  void SaySegment(uint64_t id, Bytes offset, Bytes size) {
    Say(SegmentRecorded{SegmentId(id), kWorker, "weights", offset, size, JournalState::kResident});
  }
  // In custody.
  void HoldExtent(uint64_t id, Bytes offset, Bytes size) {
    const auto handle = driver_->Create(size);
    ASSERT_THAT(handle, IsOk());
    auto fd = driver_->Export(*handle);
    ASSERT_THAT(fd, IsOk());
    const ExtentHeld held{ExtentId(id), kWorker, "weights", offset, size};
    recovery_.ledger.Apply(held);
    ASSERT_THAT(keeper_->HoldExtent(held, fd->get()), IsOk());
    recovery_.extents[ExtentId(id)] = *std::move(fd);
    ASSERT_THAT(driver_->Release(*handle), IsOk());
  }
  void Start(const std::optional<Owner>& everybody = std::nullopt) {
    Core::Options options;
    options.admit = [everybody](const net::PeerCredentials&) { return everybody; };
    options.worker_socket = directory_.path() + "/worker.sock";
    options.host_pool = MiB(16);
    options.reconnect_grace = seconds(60);
    auto core = Core::Create(*driver_, *keeper_, Clock::Real(), options, std::move(recovery_));
    ASSERT_THAT(core, IsOk());
    core_ = *std::move(core);
  }
  // What a worker is told that comes back.
  Status ComeBack() {
    wire::Hello hello;
    hello.session = kWorker;
    hello.secret = "secret";
    TORPOR_ASSIGN_OR_RETURN(connection_, net::ConnectUnix(directory_.path() + "/worker.sock"));
    TORPOR_RETURN_IF_ERROR(net::SendFrame(
        connection_.get(), static_cast<uint16_t>(wire::Type::kHello), 1, wire::Encode(hello)));
    TORPOR_ASSIGN_OR_RETURN(const net::Frame frame, net::ReceiveFrame(connection_.get()));
    TORPOR_ASSIGN_OR_RETURN(const auto reply, wire::Decode<wire::HelloReply>(frame.payload));
    return reply.status;
  }
  Bytes Resident() { return core_->Usage()->budget.resident; }

  TempDir directory_;
  std::unique_ptr<HostDriver> driver_;
  std::unique_ptr<InProcessKeeper> keeper_ = std::make_unique<InProcessKeeper>();
  Recovery recovery_;
  std::unique_ptr<Core> core_;
  UniqueFd connection_;
};

TEST_F(RecoveryTest, OfTwoExtentsInOnePlaceTheOlderHasEnded) {
  SaySegment(2, KiB(64), KiB(128));
  HoldExtent(1, Bytes(0), KiB(128));
  HoldExtent(2, KiB(64), KiB(128));
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Resident(), KiB(128));
  EXPECT_EQ(keeper_->extents(), 1u);
  EXPECT_EQ(keeper_->ledger().extents().count(ExtentId(2)), 1u);
  EXPECT_EQ(keeper_->segments().size(), 1u);
}

TEST_F(RecoveryTest, OfTwoSegmentsInOnePlaceTheOlderWasFreed) {
  SaySegment(1, Bytes(0), KiB(128));
  SaySegment(2, KiB(128), KiB(64));
  SaySegment(3, KiB(64), KiB(64));
  HoldExtent(1, Bytes(0), KiB(192));
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Resident(), KiB(192));
  const Ledger ledger = keeper_->ledger();
  EXPECT_EQ(ledger.segments().count(SegmentId(1)), 0u);
  EXPECT_EQ(ledger.segments().count(SegmentId(2)), 1u);
  EXPECT_EQ(ledger.segments().count(SegmentId(3)), 1u);
}

TEST_F(RecoveryTest, WhatIsLostStaysRecordedAndItsDescriptorsAreClosed) {
  SaySegment(1, Bytes(0), KiB(128));
  SaySegment(2, KiB(256), KiB(64));
  HoldExtent(1, Bytes(0), KiB(64));
  HoldExtent(2, KiB(64), KiB(64));
  HoldExtent(3, KiB(256), KiB(64));
  recovery_.extents.erase(ExtentId(2));
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Resident(), KiB(64));
  EXPECT_EQ(keeper_->extents(), 1u);
  const Ledger ledger = keeper_->ledger();
  EXPECT_EQ(ledger.segments().size(), 2u);
  EXPECT_EQ(ledger.lost(), (std::set<ExtentId>{ExtentId(1), ExtentId(2)}));

  // The daemon after it comes to the same.
  core_.reset();
  keeper_ = std::make_unique<InProcessKeeper>();
  ASSERT_THAT(keeper_->Record(ledger.Snapshot()), IsOk());
  recovery_.ledger = ledger;
  recovery_.extents.clear();
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Resident(), Bytes(0)) << "the last descriptor was not given";
  EXPECT_EQ(keeper_->ledger().lost().size(), 3u);
  EXPECT_EQ(keeper_->ledger().segments().size(), 2u);
}

TEST_F(RecoveryTest, ASessionOfNobodyKnownIsNotRoots) {
  ASSERT_NO_FATAL_FAILURE(Start(Owner{"uid:0", 0}));
  const auto workers = core_->Usage()->workers;
  ASSERT_EQ(workers.size(), 1U);
  EXPECT_EQ(workers[0].info.peer.uid, static_cast<uid_t>(-1));
  EXPECT_THAT(ComeBack(), HasReason("NOT_YOURS"));
}

TEST_F(RecoveryTest, WhoHasTakenASessionIsRecorded) {
  Say(SessionUser{kWorker, 4711, 4712});
  Say(SessionProcess{kWorker, ::getpid(), 1, PidNamespace()});
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_THAT(ComeBack(), IsOk());
  const Ledger ledger = keeper_->ledger();
  ASSERT_NE(ledger.FindUser(kWorker), nullptr);
  EXPECT_EQ(ledger.FindUser(kWorker)->uid, ::geteuid());
  EXPECT_EQ(ledger.FindUser(kWorker)->gid, ::getegid());
  ASSERT_NE(ledger.FindProcess(kWorker), nullptr);
  EXPECT_EQ(ledger.FindProcess(kWorker)->started, FindProcess(::getpid())->started);
}

}  // namespace
}  // namespace torpor
