// A daemon that is killed and started again, without a keeper, and the workers it had.

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>

#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

class RestartTest : public testing::Test {
 protected:
  void StartDaemon() {
    daemon_.reset();
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=64MiB", "--host_pool=64MiB", "--safety_reserve=0"});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }
  void KillDaemon() {
    daemon_->process().Signal(SIGKILL);
    const auto status = daemon_->process().Wait();
    ASSERT_THAT(status, IsOk());
    ASSERT_EQ(*status, 128 + SIGKILL);
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(RestartTest, reconnect_after_daemon_restart) {
  StartDaemon();
  const std::string socket = daemon_->worker_socket();
  const auto connected = WorkerProcess::Connect(socket, "model");
  ASSERT_THAT(connected, IsOk());
  WorkerProcess& worker = **connected;
  const auto weights = worker.Allocate("weights", "8MiB", 1);
  const auto cache = worker.Allocate("kv_cache", "4MiB", 2);
  ASSERT_TRUE(weights.ok() && cache.ok());
  ASSERT_THAT(worker.Ask("work 2"), IsOk());
  KillDaemon();

  const auto expect_usable = [&] {
    EXPECT_THAT(worker.Ask("check " + *weights + " 1"), IsOk());
    EXPECT_THAT(worker.Ask("fill " + *cache + " 3"), IsOk());
    EXPECT_THAT(worker.Ask("check " + *cache + " 3"), IsOk());
    for (const char* call : {"alloc weights 1MiB", "sleep 1", "wake", "usage"}) {
      const auto answer = worker.Ask(call);
      EXPECT_THAT(answer, HasReason("DAEMON_GONE")) << call;
      EXPECT_THAT(answer, HasCode(Code::kUnavailable)) << call;
    }
  };
  expect_usable();
  StartDaemon();
  expect_usable();
  EXPECT_EQ(daemon_->Usage()->workers_size(), 0);
  EXPECT_THAT(worker.Ask("stop_work"), IsOk());
  EXPECT_THAT(worker.Ask("iterations"), IsOk());

  // Others come, and it can itself come anew.
  const auto other = WorkerProcess::Connect(socket, "other");
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT((*other)->Allocate("weights", "4MiB", 5), IsOk());
  ASSERT_THAT(worker.Ask("close"), IsOk());
  ASSERT_THAT(worker.Ask("connect driver=host socket=" + socket + " name=model quiesce=guard"),
              IsOk());
  const auto again = worker.Allocate("weights", "8MiB", 6);
  ASSERT_THAT(again, IsOk());
  EXPECT_THAT(worker.Ask("sleep 1"), IsOk());
  EXPECT_THAT(worker.Ask("wake"), IsOk());
  EXPECT_THAT(worker.Ask("check " + *again + " 6"), IsOk());
  const auto usage = daemon_->Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->workers_size(), 2);
  EXPECT_EQ(usage->device().resident_bytes(), MiB(12).value());
}

TEST_F(RestartTest, WhatSleptWhenTheDaemonWasKilledIsNotMistakenForMemory) {
  StartDaemon();
  const auto worker = WorkerProcess::Connect(daemon_->worker_socket(), "model");
  ASSERT_THAT(worker, IsOk());
  const auto weights = (*worker)->Allocate("weights", "4MiB", 1);
  const auto runtime = (*worker)->Allocate("runtime", "4MiB", 2);
  ASSERT_TRUE(weights.ok() && runtime.ok());
  ASSERT_THAT((*worker)->Ask("sleep 1 weights"), IsOk());
  KillDaemon();
  EXPECT_THAT((*worker)->Ask("check " + *runtime + " 2"), IsOk());
  EXPECT_THAT((*worker)->Ask("check " + *weights + " 1"), HasReason("DAEMON_GONE"));
}

}  // namespace
}  // namespace torpor
