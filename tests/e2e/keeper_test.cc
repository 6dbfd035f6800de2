// Daemons and keepers that are killed, and the workers they had.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "daemon/keeper/channel.h"
#include "daemon/keeper/protocol.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

std::string Reason(const google::rpc::Status& status) {
  return ReasonOf(grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message(),
                               status.SerializeAsString()));
}

bool Protected(const v1::UsageResponse& usage) { return usage.protection().code() == 0; }

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool AllBack(const v1::UsageResponse& usage) {
  for (const v1::WorkerUsage& worker : usage.workers()) {
    if (worker.awaited() || !worker.operation_id().empty()) return false;
  }
  return true;
}

class KeeperTest : public testing::Test {
 protected:
  explicit KeeperTest(const std::string& pool = "--pool_memory=memfd")
      : keeper_(dir_.path(), {"--host_device_memory=128MiB", "--host_pool=128MiB",
                              "--safety_reserve=0", "--reconnect_grace=60s", pool}) {}
  void SetUp() override { ASSERT_THAT(keeper_.Start(), IsOk()); }
  void TearDown() override {
    if (HasFailure()) std::fputs(keeper_.log().c_str(), stderr);
  }

  std::unique_ptr<WorkerProcess> Connect(const std::string& name) {
    auto worker = WorkerProcess::Connect(keeper_.worker_socket(), name);
    EXPECT_THAT(worker, IsOk());
    return worker.ok() ? *std::move(worker) : nullptr;
  }

  // Kills the daemon, and waits until the next one serves and has everyone back.
  void KillDaemon() {
    const auto before = keeper_.daemon();
    ASSERT_THAT(before, IsOk());
    keeper_.KillDaemon();
    ASSERT_THAT(keeper_.AwaitDaemon(*before), IsOk());
    ASSERT_THAT(keeper_.AwaitUsage(AllBack), IsOk());
  }

  // Both at once, and starts another keeper.
  void KillBoth() {
    keeper_.SignalDaemon(SIGSTOP);  // so that it does nothing more without its keeper
    keeper_.KillKeeper();
    keeper_.KillDaemon();
    ASSERT_THAT(keeper_.Start(), IsOk());
    ASSERT_THAT(keeper_.AwaitUsage(AllBack), IsOk());
  }
  // Ends when the daemon has noticed.
  void KillKeeper() {
    keeper_.KillKeeper();
    ASSERT_THAT(keeper_.AwaitUsage([](const auto& usage) { return !Protected(usage); }), IsOk());
  }

  TempDir dir_;
  KeeperProcess keeper_;
};

TEST_F(KeeperTest, reconnect_after_daemon_restart) {
  const auto awake = Connect("awake");
  const auto asleep = Connect("asleep");
  ASSERT_TRUE(awake && asleep);
  const auto weights = awake->Allocate("weights", "8MiB", 1);
  const auto cache = awake->Allocate("kv_cache", "4MiB", 2);
  const auto sleeping = asleep->Allocate("weights", "16MiB", 3);
  const auto dropped = asleep->Allocate("kv_cache", "4MiB", 4);
  ASSERT_TRUE(weights.ok() && cache.ok() && sleeping.ok() && dropped.ok());
  ASSERT_THAT(asleep->Ask("sleep_policies weights=offload kv_cache=discard"), IsOk());
  ASSERT_THAT(awake->Ask("work 2"), IsOk());
  const auto before = keeper_.Usage();
  ASSERT_THAT(before, IsOk());
  EXPECT_TRUE(Protected(*before)) << before->protection().message();

  for (int turn = 0; turn < 3; ++turn) {
    KillDaemon();
    const auto after = keeper_.Usage();
    ASSERT_THAT(after, IsOk());
    ASSERT_EQ(after->workers_size(), 2);
    EXPECT_EQ(after->workers(0).id(), before->workers(0).id());
    EXPECT_EQ(after->workers(0).name(), "awake");
    EXPECT_EQ(after->workers(0).pid(), before->workers(0).pid());
    EXPECT_EQ(after->device().resident_bytes(), before->device().resident_bytes());
    EXPECT_EQ(after->device().available_bytes(), before->device().available_bytes());
    EXPECT_EQ(after->host_pool().used_bytes(), before->host_pool().used_bytes());
    EXPECT_TRUE(Protected(*after)) << after->protection().message();
  }

  // The one computes on, sleeps and wakes, allocates and frees.
  EXPECT_THAT(awake->Ask("stop_work"), IsOk());
  EXPECT_THAT(awake->Ask("iterations"), IsOk());
  EXPECT_THAT(awake->Ask("sleep 1"), IsOk());
  EXPECT_THAT(awake->Ask("wake"), IsOk());
  EXPECT_THAT(awake->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_THAT(awake->Ask("checkzero " + *cache), IsOk());
  EXPECT_THAT(awake->Ask("free " + *cache), IsOk());
  EXPECT_THAT(awake->Allocate("kv_cache", "6MiB", 5), IsOk());
  // The other wakes with every byte.
  EXPECT_THAT(asleep->Ask("wake"), IsOk());
  EXPECT_THAT(asleep->Ask("check " + *sleeping + " 3"), IsOk());
  EXPECT_THAT(asleep->Ask("checkzero " + *dropped), IsOk());
  // Others come.
  const auto other = Connect("other");
  ASSERT_TRUE(other);
  EXPECT_THAT(other->Allocate("weights", "4MiB", 6), IsOk());
  EXPECT_THAT(keeper_.Stop(), IsOk());
}

TEST_F(KeeperTest, CallsMadeMeanwhileComeThrough) {
  const auto worker = Connect("model");
  ASSERT_TRUE(worker);
  const auto weights = worker->Allocate("weights", "8MiB", 1);
  ASSERT_TRUE(weights.ok());
  keeper_.SignalDaemon(SIGSTOP);
  ASSERT_THAT(worker->Tell("bg alloc kv_cache 4MiB 2"), IsOk());
  ASSERT_THAT(worker->ReadAnswer(), IsOk());
  keeper_.KillDaemon();
  EXPECT_THAT(worker->Ask("wait"), IsOk());
  EXPECT_THAT(worker->Ask("sleep 1"), IsOk());
  KillDaemon();
  EXPECT_THAT(worker->Ask("wake"), IsOk());
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_THAT(worker->Ask("free " + *weights), IsOk());
  const auto usage = keeper_.Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->device().resident_bytes(), MiB(4).value());
}

TEST_F(KeeperTest, AKeeperThatIsKilledIsFollowedByAnother) {
  const auto worker = Connect("model");
  ASSERT_TRUE(worker);
  const auto weights = worker->Allocate("weights", "8MiB", 1);
  const auto first = worker->Allocate("first", "4MiB", 2);
  ASSERT_TRUE(weights.ok() && first.ok());
  const auto daemon = keeper_.daemon();
  keeper_.KillKeeper();
  const auto unprotected = keeper_.AwaitUsage([](const auto& usage) { return !Protected(usage); });
  ASSERT_THAT(unprotected, IsOk());
  EXPECT_EQ(Reason(unprotected->protection()), "KEEPER_GONE");
  // The daemon goes on meanwhile.
  EXPECT_THAT(worker->Ask("sleep 1 weights"), IsOk());
  const auto second = worker->Allocate("second", "4MiB", 3);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(worker->Ask("free " + *first), IsOk());

  ASSERT_THAT(keeper_.Start(), IsOk());
  ASSERT_THAT(keeper_.AwaitUsage(&Protected), IsOk());
  EXPECT_EQ(*keeper_.daemon(), *daemon);
  KillDaemon();
  EXPECT_THAT(worker->Ask("check " + *second + " 3"), IsOk());
  EXPECT_THAT(worker->Ask("wake"), IsOk());
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_EQ(keeper_.Usage()->device().resident_bytes(), MiB(12).value());
}

// As if its keeper had been killed between its start and the note of it.
TEST_F(KeeperTest, ADaemonThatNobodyKnowsIsTakenOver) {
  const auto worker = Connect("model");
  ASSERT_TRUE(worker);
  const auto weights = worker->Allocate("weights", "8MiB", 1);
  ASSERT_TRUE(weights.ok());
  const auto daemon = keeper_.daemon();
  ASSERT_THAT(daemon, IsOk());
  ASSERT_NO_FATAL_FAILURE(KillKeeper());
  std::filesystem::remove(keeper_.journal());
  ASSERT_THAT(keeper_.Start(), IsOk());
  ASSERT_THAT(keeper_.AwaitUsage(&Protected), IsOk());
  EXPECT_EQ(*keeper_.daemon(), *daemon);
  // Now it is known: also to a keeper after this one, and it is followed by another one.
  while (!Contains(keeper_.log(), "is taken over")) std::this_thread::yield();
  EXPECT_TRUE(Contains(keeper_.log(), std::to_string(*daemon) + ", which this keeper has not"));
  ASSERT_NO_FATAL_FAILURE(KillKeeper());
  ASSERT_THAT(keeper_.Start(), IsOk());
  ASSERT_THAT(keeper_.AwaitUsage(&Protected), IsOk());
  EXPECT_TRUE(Contains(keeper_.log(), std::to_string(*daemon) + " lives on without its keeper"));
  KillDaemon();
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_THAT(worker->Ask("sleep 1"), IsOk());
  EXPECT_THAT(keeper_.Stop(), IsOk());
}

TEST_F(KeeperTest, AnotherDaemonIsRefused) {
  const auto daemon = keeper_.daemon();
  ASSERT_THAT(daemon, IsOk());
  const auto channel = keeper::Channel::Connect(keeper_.keeper_socket(), kPatience, -1);
  ASSERT_THAT(channel, IsOk());
  const Status refused =
      (*channel)
          ->Ask<keeper::AttachReply>(keeper::Type::kAttach, keeper::Attach{keeper::kProtocol, "x"})
          .status();
  EXPECT_THAT(refused, HasReason("KEEPER_IN_USE"));
  EXPECT_EQ(refused.Number("daemon_pid"), *daemon);
  EXPECT_FALSE(Contains(keeper_.log(), "the keeper is lost")) << keeper_.log();
}

TEST_F(KeeperTest, WhoHasEndedMeanwhileIsNotAwaited) {
  const auto worker = Connect("model");
  const auto gone = Connect("gone");
  ASSERT_TRUE(worker && gone);
  ASSERT_TRUE(worker->Allocate("weights", "8MiB", 1).ok());
  ASSERT_TRUE(gone->Allocate("weights", "8MiB", 1).ok());
  keeper_.SignalDaemon(SIGSTOP);
  gone->process().Signal(SIGKILL);
  ASSERT_THAT(gone->process().Wait(), IsOk());
  const auto before = keeper_.daemon();
  keeper_.KillDaemon();
  ASSERT_THAT(keeper_.AwaitDaemon(*before), IsOk());
  const auto usage = keeper_.AwaitUsage(
      [](const auto& now) { return now.workers_size() == 1 && !now.workers(0).awaited(); });
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->workers(0).name(), "model");
  EXPECT_EQ(usage->device().resident_bytes(), MiB(8).value());
}

TEST_F(KeeperTest, WhoIsStoppedIsAwaitedForTheWholeTime) {
  const auto worker = Connect("model");
  const auto silent = Connect("silent");
  ASSERT_TRUE(worker && silent);
  ASSERT_TRUE(worker->Allocate("weights", "8MiB", 1).ok());
  ASSERT_TRUE(silent->Allocate("weights", "8MiB", 1).ok());
  silent->process().Signal(SIGSTOP);
  const auto before = keeper_.daemon();
  keeper_.KillDaemon();
  ASSERT_THAT(keeper_.AwaitDaemon(*before), IsOk());
  const auto usage = keeper_.AwaitUsage(
      [](const auto& now) { return now.workers_size() == 2 && !now.workers(0).awaited(); });
  ASSERT_THAT(usage, IsOk());
  EXPECT_TRUE(usage->workers(1).awaited());
  EXPECT_GT(usage->workers(1).pid(), 0);
  // Nor does it hold up the end.
  const auto status = keeper_.Stop();
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(*status, 0) << keeper_.log();
}

TEST_F(KeeperTest, AnUpgradeIsSeenByNobody) {
  const auto worker = Connect("model");
  ASSERT_TRUE(worker);
  const auto weights = worker->Allocate("weights", "8MiB", 1);
  ASSERT_TRUE(weights.ok());
  ASSERT_THAT(worker->Ask("sleep 1"), IsOk());
  const auto before = keeper_.daemon();
  grpc::ClientContext context;
  v1::UpgradeResponse response;
  const grpc::Status status = keeper_.NewStub()->Upgrade(&context, {}, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(keeper_.AwaitDaemon(*before), IsOk());
  EXPECT_THAT(worker->Ask("wake"), IsOk());
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
}

class NamedPoolTest : public KeeperTest {
 protected:
  NamedPoolTest() : NamedPoolTest(std::make_unique<TempDir>("/dev/shm")) {}
  explicit NamedPoolTest(std::unique_ptr<TempDir> pool)
      : KeeperTest("--pool_dir=" + pool->path()), pool_dir_(std::move(pool)) {}
  grpc::Status Sleep(const std::string& worker) {
    v1::SleepRequest request;
    request.mutable_selector()->add_workers(worker);
    request.set_level(1);
    grpc::ClientContext context;
    v1::SleepResponse response;
    return keeper_.NewStub()->Sleep(&context, request, &response);
  }
  bool HasFile() const { return !std::filesystem::is_empty(pool_dir_->path()); }

  std::unique_ptr<TempDir> pool_dir_;
};

TEST_F(NamedPoolTest, WhatSleepsOutlivesBoth) {
  const auto asleep = Connect("asleep");
  const auto awake = Connect("awake");
  ASSERT_TRUE(asleep && awake);
  const auto weights = asleep->Allocate("weights", "16MiB", 1);
  const auto cache = asleep->Allocate("kv_cache", "4MiB", 2);
  const auto lost = awake->Allocate("weights", "8MiB", 3);
  ASSERT_TRUE(weights.ok() && cache.ok() && lost.ok());
  ASSERT_THAT(asleep->Ask("sleep_policies weights=offload kv_cache=discard"), IsOk());
  EXPECT_TRUE(HasFile());
  KillBoth();

  // Told by name; its worker has the bytes for itself.
  EXPECT_NE(keeper_.log().find("lost: awake, tag weights: 8.00 MiB (1 segments) on the device"),
            std::string::npos);
  EXPECT_THAT(awake->Ask("check " + *lost + " 3"), IsOk());
  auto usage = keeper_.Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->device().resident_bytes(), 0);
  EXPECT_EQ(usage->host_pool().used_bytes(), MiB(16).value());
  EXPECT_TRUE(Protected(*usage)) << usage->protection().message();

  for (int turn = 0; turn < 2; ++turn) {
    // Its addresses are nobody else's, also for the daemons that follow.
    const auto other = awake->Allocate("weights", "8MiB", 4 + turn);
    ASSERT_THAT(other, IsOk());
    EXPECT_THAT(awake->Ask("check " + *lost + " 3"), IsOk());
    EXPECT_THAT(awake->Ask("check " + *other + " " + std::to_string(4 + turn)), IsOk());
    KillDaemon();
    usage = keeper_.Usage();
    ASSERT_THAT(usage, IsOk());
    EXPECT_EQ(usage->device().resident_bytes(), MiB(8).value() * (turn + 1));
  }
  EXPECT_THAT(asleep->Ask("wake"), IsOk());
  EXPECT_THAT(asleep->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_THAT(asleep->Ask("checkzero " + *cache), IsOk());
  EXPECT_THAT(awake->Ask("sleep 1"), IsOk());
  EXPECT_THAT(awake->Ask("wake"), IsOk());
  EXPECT_THAT(awake->Ask("check " + *lost + " 3"), IsOk());

  // Nobody is told that it sleeps, or is awake, until it has freed what is lost.
  for (const bool freed : {false, true}) {
    if (freed) {
      ASSERT_THAT(awake->Ask("free " + *lost), IsOk());
      ASSERT_THAT(keeper_.AwaitUsage([](const v1::UsageResponse& now) {
        return now.workers(1).tags(0).lost_bytes() == 0;
      }),
                  IsOk());
    }
    const grpc::Status slept = Sleep("awake");
    EXPECT_EQ(ReasonOf(slept), freed ? "" : "SEGMENTS_LOST") << slept.error_message();
    if (!freed) {
      EXPECT_EQ(DetailOf(slept, "lost_bytes"), std::to_string(MiB(8).value()));
      EXPECT_EQ(keeper_.Usage()->workers(1).tags(0).lost_bytes(), MiB(8).value());
    }
  }

  // And again, with what slept, woke and sleeps.
  EXPECT_THAT(asleep->Ask("sleep 1"), IsOk());
  KillBoth();
  EXPECT_THAT(asleep->Ask("wake"), IsOk());
  EXPECT_THAT(asleep->Ask("check " + *weights + " 1"), IsOk());
  EXPECT_THAT(keeper_.Stop(), IsOk());
  EXPECT_FALSE(HasFile());
}

TEST_F(NamedPoolTest, WithoutItsFileOnlyWhatSleptIsLost) {
  const auto worker = Connect("model");
  ASSERT_TRUE(worker);
  const auto weights = worker->Allocate("weights", "16MiB", 1);
  const auto cache = worker->Allocate("kv_cache", "4MiB", 2);
  ASSERT_TRUE(weights.ok() && cache.ok());
  ASSERT_THAT(worker->Ask("sleep_policies weights=offload kv_cache=discard"), IsOk());
  std::filesystem::remove_all(pool_dir_->path());
  std::filesystem::create_directory(pool_dir_->path());
  KillBoth();
  EXPECT_NE(keeper_.log().find("lost: model, tag weights: 16.00 MiB (1 segments) asleep"),
            std::string::npos);
  EXPECT_TRUE(HasFile());
  EXPECT_THAT(worker->Ask("wake kv_cache"), IsOk());
  EXPECT_THAT(worker->Ask("checkzero " + *cache), IsOk());
  EXPECT_EQ(keeper_.Usage()->host_pool().used_bytes(), 0);
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), HasReason("SEGMENTS_LOST"));
  EXPECT_THAT(worker->Ask("free " + *weights), IsOk());
  EXPECT_THAT(worker->Allocate("weights", "16MiB", 3), IsOk());
}

// As by a daemon that was stopped, and followed by another one: its keeper had taken it over.
TEST_F(NamedPoolTest, OneThatWasRemovedIsReplacedWhenNothingSleeps) {
  const auto worker = Connect("model");
  ASSERT_TRUE(worker);
  const auto weights = worker->Allocate("weights", "16MiB", 1);
  ASSERT_THAT(weights, IsOk());
  ASSERT_THAT(worker->Ask("sleep 1"), IsOk());
  std::filesystem::remove_all(pool_dir_->path());
  std::filesystem::create_directory(pool_dir_->path());
  KillDaemon();
  EXPECT_TRUE(Contains(keeper_.log(), "was removed: what sleeps ends with this daemon"));
  EXPECT_TRUE(Contains(keeper_.Usage()->host_pool().kind(), ", removed"));
  EXPECT_FALSE(HasFile());
  ASSERT_THAT(worker->Ask("wake"), IsOk());
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
  KillDaemon();
  EXPECT_FALSE(Contains(keeper_.Usage()->host_pool().kind(), ", removed"));
  EXPECT_TRUE(HasFile());
  ASSERT_THAT(worker->Ask("sleep 1"), IsOk());
  KillBoth();
  ASSERT_THAT(worker->Ask("wake"), IsOk());
  EXPECT_THAT(worker->Ask("check " + *weights + " 1"), IsOk());
}

// Of several things that were drawn and lost, made and renewed.
TEST_F(NamedPoolTest, ReservationsOutliveBoth) {
  grpc::ClientContext context;
  v1::ReserveRequest request;
  v1::ReserveResponse made;
  request.set_name("next");
  auto* const part = request.add_parts();
  part->set_name("weights");
  part->set_device_bytes(MiB(32).value());
  request.set_host_bytes(MiB(16).value());
  request.mutable_ttl()->set_seconds(600);
  request.set_keep(true);
  const grpc::Status reserved = keeper_.NewStub()->Reserve(&context, request, &made);
  ASSERT_TRUE(reserved.ok()) << reserved.error_message();
  {
    auto worker = WorkerProcess::Connect(keeper_.worker_socket(), "model", "guard",
                                         "reservation=" + made.reservation_id());
    ASSERT_THAT(worker, IsOk());
    ASSERT_THAT((*worker)->Allocate("weights", "16MiB", 1), IsOk());
    ASSERT_THAT((*worker)->Ask("sleep 2"), IsOk());
    ASSERT_THAT((*worker)->Ask("close"), IsOk());
  }
  const auto before =
      keeper_.AwaitUsage([](const auto& usage) { return usage.workers_size() == 0; });
  ASSERT_THAT(before, IsOk());
  ASSERT_EQ(before->reservations_size(), 1);
  for (int turn = 0; turn < 2; ++turn) {
    KillBoth();
    const auto after = keeper_.Usage();
    ASSERT_THAT(after, IsOk());
    ASSERT_EQ(after->reservations_size(), 1);
    EXPECT_EQ(after->reservations(0).id(), made.reservation_id());
    EXPECT_EQ(after->reservations(0).parts_size(), 1);
    EXPECT_EQ(after->device().promised_bytes(), before->device().promised_bytes());
    EXPECT_EQ(after->device().available_bytes(), before->device().available_bytes());
  }
}

// What it says must not be believed after a boot.
TEST(KeeperJournalTest, OneThatOutlivesTheMachineIsToldInTheLog) {
  for (const std::string parent : {"/tmp", "/dev/shm"}) {
    const TempDir dir(parent);
    struct statfs about {};
    ASSERT_EQ(::statfs(dir.path().c_str(), &about), 0);
    KeeperProcess keeper(dir.path(), {"--host_device_memory=16MiB", "--host_pool=16MiB"});
    ASSERT_THAT(keeper.Start(), IsOk());
    EXPECT_EQ(Contains(keeper.log(), "does not lie on a tmpfs"), about.f_type != TMPFS_MAGIC)
        << keeper.log();
    EXPECT_THAT(keeper.Stop(), IsOk());
  }
}

}  // namespace
}  // namespace torpor
