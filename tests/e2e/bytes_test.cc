// Every byte of every worker, through sleeps, restarts of all kinds and wakes, while the memory
// belongs to another worker in between.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

enum class Restart { kNone, kDaemon, kKeeper, kUpgrade, kBoth };
constexpr Restart kAll[] = {Restart::kNone, Restart::kDaemon, Restart::kKeeper, Restart::kUpgrade,
                            Restart::kBoth};

class Restarts : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(keeper_.Start(), IsOk());
    model_ = Connect("model");
    other_ = Connect("other");
    ASSERT_TRUE(model_ && other_);
  }
  void TearDown() override {
    if (HasFailure()) std::fputs(keeper_.log().c_str(), stderr);
  }

  std::unique_ptr<WorkerProcess> Connect(const std::string& name) {
    auto worker = WorkerProcess::Connect(keeper_.worker_socket(), name);
    EXPECT_THAT(worker, IsOk());
    return worker.ok() ? *std::move(worker) : nullptr;
  }

  // And waits until everybody is back.
  void Do(Restart restart) {
    const auto before = keeper_.daemon();
    ASSERT_THAT(before, IsOk());
    switch (restart) {
      case Restart::kNone:
        return;
      case Restart::kDaemon:
        keeper_.KillDaemon();
        break;
      case Restart::kKeeper:
        keeper_.KillKeeper();
        // The daemon has noticed.
        ASSERT_THAT(keeper_.AwaitUsage([](const v1::UsageResponse& usage) {
          return usage.protection().code() != 0;
        }),
                    IsOk());
        ASSERT_THAT(keeper_.Start(), IsOk());
        break;
      case Restart::kUpgrade: {
        grpc::ClientContext context;
        v1::UpgradeResponse response;
        ASSERT_TRUE(keeper_.NewStub()->Upgrade(&context, {}, &response).ok());
        break;
      }
      case Restart::kBoth:
        keeper_.KillKeeper();
        keeper_.KillDaemon();
        ASSERT_THAT(keeper_.Start(), IsOk());
        break;
    }
    if (restart != Restart::kKeeper) {
      ASSERT_THAT(keeper_.AwaitDaemon(*before), IsOk());
    }
    ASSERT_THAT(keeper_.AwaitUsage([](const v1::UsageResponse& usage) {
      if (usage.protection().code() != 0 || usage.workers_size() != 2) return false;
      for (const v1::WorkerUsage& worker : usage.workers()) {
        if (worker.awaited() || !worker.operation_id().empty()) return false;
      }
      return true;
    }),
                IsOk());
  }

  // The other worker writes to all that is free on the device, and lets go of it again.
  void UseAllMemory(int seed) {
    const auto usage = keeper_.Usage();
    ASSERT_THAT(usage, IsOk());
    const int64_t free = usage->device().available_bytes();
    ASSERT_GE(free, 4 * kUnit);
    const std::string half = std::to_string(free / kUnit / 2 * kUnit);
    std::vector<std::string> segments;
    for (int i = 0; i < 2; ++i) {
      const auto segment = other_->Allocate("scratch", half, seed + i);
      ASSERT_THAT(segment, IsOk());
      segments.push_back(*segment);
    }
    for (int i = 0; i < 2; ++i) {
      const auto index = static_cast<size_t>(i);
      ASSERT_THAT(other_->Ask("check " + segments[index] + " " + std::to_string(seed + i)), IsOk());
      ASSERT_THAT(other_->Ask("free " + segments[index]), IsOk());
    }
  }

  static constexpr int64_t kUnit = int64_t{64} * 1024;
  TempDir dir_;
  TempDir pool_dir_{"/dev/shm"};
  KeeperProcess keeper_{
      dir_.path(),
      {"--host_device_memory=8MiB", "--host_granularity=64KiB", "--host_pool=16MiB",
       "--safety_reserve=0", "--reconnect_grace=60s", "--pool_dir=" + pool_dir_.path()}};
  std::unique_ptr<WorkerProcess> model_;
  std::unique_ptr<WorkerProcess> other_;
};

class every_byte_returns : public Restarts {};
class discarded_memory_is_clean : public Restarts {};

TEST_F(every_byte_returns, AfterARestart) {
  // Of sizes that fill no unit, and with gaps.
  std::map<std::string, int> segments;
  int seed = 0;
  for (const char* const tag : {"weights", "runtime", "adapter"}) {
    for (const char* const size : {"64KiB", "100KiB", "8", "1MiB", "192KiB"}) {
      const auto segment = model_->Allocate(tag, size, ++seed);
      ASSERT_THAT(segment, IsOk());
      segments[*segment] = seed;
    }
  }
  for (const char* const gap : {"2", "8", "14"}) {
    ASSERT_THAT(model_->Ask(std::string("free ") + gap), IsOk());
    segments.erase(gap);
  }
  const auto kept = other_->Allocate("weights", "1MiB", 99);
  ASSERT_THAT(kept, IsOk());
  for (int cycle = 0; cycle < 2; ++cycle) {
    for (const Restart restart : kAll) {
      SCOPED_TRACE("cycle " + std::to_string(cycle) + ", restart " +
                   std::to_string(static_cast<int>(restart)));
      ASSERT_THAT(model_->Ask("sleep 1"), IsOk());
      // What is awake does not outlive both.
      if (restart == Restart::kBoth) {
        ASSERT_THAT(other_->Ask("sleep 1"), IsOk());
      }
      ASSERT_NO_FATAL_FAILURE(UseAllMemory(1000 + cycle));
      ASSERT_NO_FATAL_FAILURE(Do(restart));
      ASSERT_NO_FATAL_FAILURE(UseAllMemory(2000 + cycle));
      ASSERT_THAT(model_->Ask("wake"), IsOk());
      ASSERT_THAT(other_->Ask("wake"), IsOk());
      for (const auto& [segment, filled] : segments) {
        ASSERT_THAT(model_->Ask("check " + segment + " " + std::to_string(filled)), IsOk());
      }
      ASSERT_THAT(other_->Ask("check " + *kept + " 99"), IsOk());
      // Other bytes in the one, so that the image of the last sleep is not enough.
      const auto changed = segments.begin();
      changed->second += 100;
      ASSERT_THAT(model_->Ask("fill " + changed->first + " " + std::to_string(changed->second)),
                  IsOk());
    }
  }
}

TEST_F(discarded_memory_is_clean, AfterARestart) {
  const auto weights = model_->Allocate("weights", "512KiB", 1);
  ASSERT_THAT(weights, IsOk());
  std::vector<std::string> caches;
  for (const char* const size : {"1MiB", "100KiB", "512KiB"}) {
    const auto cache = model_->Allocate("kv_cache", size, 2);
    ASSERT_THAT(cache, IsOk());
    caches.push_back(*cache);
  }
  ASSERT_THAT(model_->Ask("free " + caches[1]), IsOk());
  caches.erase(caches.begin() + 1);
  for (const Restart restart : kAll) {
    SCOPED_TRACE("restart " + std::to_string(static_cast<int>(restart)));
    for (const std::string& cache : caches) {
      ASSERT_THAT(model_->Ask("fill " + cache + " 3"), IsOk());
    }
    ASSERT_THAT(model_->Ask("sleep 1"), IsOk());
    ASSERT_NO_FATAL_FAILURE(UseAllMemory(1000));
    ASSERT_NO_FATAL_FAILURE(Do(restart));
    ASSERT_NO_FATAL_FAILURE(UseAllMemory(2000));
    ASSERT_THAT(model_->Ask("wake"), IsOk());
    for (const std::string& cache : caches) {
      ASSERT_THAT(model_->Ask("checkzero " + cache), IsOk());
    }
    // Nor is anybody's byte in the gap, or in what comes anew.
    const auto fresh = model_->Ask("alloc kv_cache 128KiB");
    ASSERT_THAT(fresh, IsOk());
    const std::string id = fresh->substr(0, fresh->find(' '));
    ASSERT_THAT(model_->Ask("checkzero " + id), IsOk());
    ASSERT_THAT(model_->Ask("free " + id), IsOk());
    ASSERT_THAT(model_->Ask("check " + *weights + " 1"), IsOk());
  }
}

}  // namespace
}  // namespace torpor
