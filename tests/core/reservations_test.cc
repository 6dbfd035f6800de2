// Reservations, the queue and waiting allocations of a whole daemon, with workers in this process
// and in processes of their own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

using testing::HasSubstr;

class Reservations : public CoreFixture {
 protected:
  std::unique_ptr<WorkerProcess> Spawn(const std::string& name, const std::string& reservation) {
    auto worker = WorkerProcess::Connect(directory_ + "/worker.sock", name, "guard",
                                         reservation.empty() ? "" : "reservation=" + reservation);
    EXPECT_THAT(worker, IsOk());
    return worker.ok() ? *std::move(worker) : nullptr;
  }
  // Waits in the queue on a thread of the daemon's; the future is its answer.
  std::future<Result<ReserveResult>> ReserveInTurn(const ReservationSpec& spec,
                                                   Duration patience = seconds(60)) {
    auto answer = std::make_shared<std::promise<Result<ReserveResult>>>();
    core_->ReserveAsync(
        core_->NewTicket(), spec, clock_.Now() + patience,
        [answer](Result<ReserveResult> result) { answer->set_value(std::move(result)); });
    return answer->get_future();
  }
  static bool Ready(const std::future<Result<ReserveResult>>& answer) {
    return answer.wait_for(milliseconds(0)) == std::future_status::ready;
  }
  void WaitForQueue(size_t length) {
    const TimePoint until = In(seconds(20));
    while (Usage().queue.size() != length) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
};

// A device of 24 (MiB stand for GiB here), of which 2 are kept in reserve; a model of 14 and a
// workspace of 2; each request's KV cache takes 1.5. 24 - 2 - 14 - 2 = 6 = 4 * 1.5.
TEST_F(Reservations, four_fit_the_fifth_waits_or_is_refused) {
  Setup setup;
  setup.device = MiB(24);
  setup.safety_reserve = MiB(2);
  Start(setup);
  ASSERT_THAT(core_->Reserve(
                  {"model", {{"weights", MiB(14)}, {"workspace", MiB(2)}}, Bytes(0), seconds(600)}),
              IsOk());
  const ReservationSpec request{"request", {{"kv_cache", KiB(1536)}}, Bytes(0), seconds(60)};
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) {
    const auto fits = core_->Reserve(request);
    ASSERT_THAT(fits, IsOk());
    ids.push_back(fits->id);
  }
  EXPECT_EQ(Usage().budget.available, Bytes(0));
  const auto refused = core_->Reserve(request);
  ASSERT_THAT(refused, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(refused.status().Number("requested_bytes"), KiB(1536).value());
  EXPECT_EQ(refused.status().Number("available_bytes"), 0);
  EXPECT_EQ(refused.status().Number("total_bytes"), MiB(24).value());
  EXPECT_EQ(refused.status().Number("safety_reserve_bytes"), MiB(2).value());
  EXPECT_EQ(refused.status().Number("promised_bytes"), MiB(22).value());
  EXPECT_THAT(refused.status().details().at("reservations"),
              HasSubstr("model (r-1): 16777216, request (r-2): 1572864"));
  // Or it waits until one of the four is done.
  const auto fifth = ReserveInTurn(request);
  EXPECT_FALSE(Ready(fifth));
  const UsageReport usage = Usage();
  ASSERT_EQ(usage.queue.size(), 1u);
  EXPECT_EQ(usage.queue[0].name, "request");
  EXPECT_EQ(usage.queue[0].device, KiB(1536));
  ASSERT_THAT(core_->Release(ids[2]), IsOk());
  ASSERT_EQ(fifth.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_TRUE(Usage().queue.empty());
}

// What an engine measures as free is not its own until it is promised: a neighbour that wakes takes
// it. With a reservation the number stays what it was.
TEST_F(Reservations, neighbour_frees_while_one_profiles) {
  Setup setup;
  setup.device = MiB(32);
  Start(setup);
  const auto neighbour = Connect("neighbour");
  ASSERT_THAT(neighbour->Allocate("weights", MiB(20), 1), IsOk());
  const auto reserved = core_->Reserve(
      {"profiler", {{"weights", MiB(4)}, {"kv_cache", MiB(8)}}, Bytes(0), seconds(600)});
  ASSERT_THAT(reserved, IsOk());
  const auto profiler = Connect("profiler", wire::Quiesce::kSynchronize, reserved->id);
  ASSERT_THAT(profiler->Allocate("weights", MiB(4), 2), IsOk());
  const auto left = [&] {
    const ReservationStats stats = Usage().reservations.at(0);
    return stats.device - stats.drawn_device;
  };
  EXPECT_EQ(left(), MiB(8));
  ASSERT_THAT(Sleep(Only(*neighbour)), IsOk());
  EXPECT_EQ(left(), MiB(8));
  ASSERT_THAT(Wake(Only(*neighbour)), IsOk());
  EXPECT_EQ(left(), MiB(8));
  ASSERT_THAT(profiler->Allocate("kv_cache", MiB(8), 3), IsOk());
  EXPECT_TRUE(neighbour->AllHavePattern());
  EXPECT_TRUE(profiler->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Reservations, reservation_expires) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto reserved = core_->Reserve({"engine", {{"weights", MiB(12)}}, Bytes(0), seconds(60)});
  ASSERT_THAT(reserved, IsOk());
  const auto worker = Spawn("engine", reserved->id);
  ASSERT_THAT(worker->Allocate("weights", "4MiB", 1), IsOk());
  clock_.Advance(seconds(59));
  ASSERT_THAT(core_->Renew(reserved->id, seconds(60)), IsOk());
  clock_.Advance(seconds(59));
  EXPECT_EQ(Usage().budget.available, MiB(4));
  // Someone waits for what the expiry frees.
  auto next = ReserveInTurn({"next", {{"weights", MiB(12)}}, Bytes(0), seconds(60)});
  EXPECT_FALSE(Ready(next));
  clock_.Advance(seconds(1));
  ASSERT_EQ(next.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_THAT(next.get(), IsOk());
  // What was drawn is as it was.
  EXPECT_THAT(worker->Ask("check 1 1"), IsOk());
  EXPECT_THAT(worker->Ask("alloc weights 64KiB"), HasReason("RESERVATION_EXPIRED"));
  EXPECT_THAT(core_->Renew(reserved->id, seconds(60)), HasReason("RESERVATION_EXPIRED"));
}

TEST_F(Reservations, reservation_outlives_a_restarting_worker) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  ReservationSpec spec{"engine", {{"weights", MiB(12)}}, Bytes(0), seconds(60)};
  spec.keep = true;
  const auto reserved = core_->Reserve(spec);
  ASSERT_THAT(reserved, IsOk());
  const auto other = Connect("other");
  for (int life = 1; life <= 3; ++life) {
    const auto worker = Spawn("engine", reserved->id);
    EXPECT_EQ(Usage().reservations.at(0).holders, 1);
    // The memory of the one before may be pinned for a moment longer: the promise is there.
    ASSERT_THAT(worker->Ask("alloc weights 12MiB 1 timeout=10000"), IsOk());
    EXPECT_THAT(worker->Ask("check 1 1"), IsOk());
    worker->process().Signal(SIGKILL);
    WaitForWorkers(1);
    EXPECT_THAT(other->session->Allocate("weights", MiB(5)), HasReason("DEVICE_BUDGET_EXHAUSTED"));
    EXPECT_EQ(Usage().budget.promised, MiB(12));
  }
  // Without being asked to, it does not.
  ASSERT_THAT(core_->Release(reserved->id), IsOk());
  spec.keep = false;
  const auto ending = core_->Reserve(spec);
  ASSERT_THAT(ending, IsOk());
  const auto worker = Spawn("engine", ending->id);
  worker->process().Signal(SIGKILL);
  WaitForWorkers(1);
  EXPECT_TRUE(Usage().reservations.empty());
  EXPECT_THAT(core_->Release(ending->id), HasReason("RESERVATION_ENDED"));
}

TEST_F(Reservations, ASleepersBytesAreHeldForIt) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  ReservationSpec spec{"engine", {{"weights", MiB(12)}}, Bytes(0), seconds(60)};
  spec.hold = true;
  const auto reserved = core_->Reserve(spec);
  ASSERT_THAT(reserved, IsOk());
  const auto worker = Connect("engine", wire::Quiesce::kSynchronize, reserved->id);
  const auto greedy = Connect("greedy");
  ASSERT_THAT(worker->Allocate("weights", MiB(12), 1), IsOk());
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(Sleep(Only(*worker)), IsOk());
    EXPECT_EQ(Usage().budget.promised, MiB(12));
    EXPECT_THAT(greedy->session->Allocate("weights", MiB(5)), HasReason("DEVICE_BUDGET_EXHAUSTED"));
    ASSERT_THAT(Wake(Only(*worker)), IsOk());
    EXPECT_TRUE(worker->AllHavePattern());
  }
  ExpectBooksAgree();
}

TEST_F(Reservations, AnAllocationWaitsForASleep) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto first = Connect("first");
  const auto second = Connect("second");
  ASSERT_THAT(first->Allocate("weights", MiB(12), 1), IsOk());
  auto allocated = std::async(
      std::launch::async, [&] { return second->session->AllocateWait("weights", MiB(10), -1); });
  WaitForQueue(1);
  EXPECT_EQ(Usage().queue[0].worker, WorkerName(second->id));
  EXPECT_EQ(Usage().queue[0].name, "second");
  // Its connection serves on.
  EXPECT_THAT(second->session->Usage(), IsOk());
  ASSERT_THAT(second->Allocate("kv_cache", MiB(1), 2), IsOk());
  ASSERT_THAT(Sleep(Only(*first)), IsOk());
  ASSERT_EQ(allocated.wait_for(seconds(20)), std::future_status::ready);
  const auto address = allocated.get();
  ASSERT_THAT(address, IsOk());
  EXPECT_THAT(Wake(Only(*first)), HasReason("DEVICE_BUDGET_EXHAUSTED"));
  ASSERT_THAT(second->session->Free(*address), IsOk());
  ASSERT_THAT(Wake(Only(*first)), IsOk());
  EXPECT_TRUE(first->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(Reservations, AWaitingAllocationEndsAtItsDeadlineOrWithItsWorker) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto first = Connect("first");
  ASSERT_THAT(first->Allocate("weights", MiB(12), 1), IsOk());
  auto late = std::async(std::launch::async,
                         [&] { return first->session->AllocateWait("weights", MiB(8), 5000); });
  WaitForQueue(1);
  clock_.Advance(seconds(6));
  ASSERT_EQ(late.wait_for(seconds(20)), std::future_status::ready);
  const auto refused = late.get();
  ASSERT_THAT(refused, HasReason("ALLOCATION_DEADLINE"));
  EXPECT_THAT(refused, HasCode(Code::kDeadlineExceeded));
  EXPECT_EQ(refused.status().Number("requested_bytes"), MiB(8).value());
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(4).value());
  EXPECT_THAT(refused.status().details().at("workers"), HasSubstr("first (w-1): 12582912"));

  const auto dying = Spawn("dying", "");
  ASSERT_THAT(dying->Tell("alloc weights 8MiB timeout=60000"), IsOk());
  WaitForQueue(1);
  dying->process().Signal(SIGKILL);
  WaitForWorkers(1);
  EXPECT_TRUE(Usage().queue.empty());

  // Nor does it keep the daemon.
  auto stopped = std::async(std::launch::async,
                            [&] { return first->session->AllocateWait("weights", MiB(8), -1); });
  WaitForQueue(1);
  core_->Stop();
  EXPECT_THAT(stopped.get(), HasCode(Code::kUnavailable));
}

TEST_F(Reservations, AnAllocationInsideTheWorkGuardDoesNotWait) {
  Start();
  const auto worker = Connect("a", wire::Quiesce::kGuard);
  ASSERT_THAT(worker->session->WorkBegin({}, std::nullopt), IsOk());
  EXPECT_THAT(worker->session->AllocateWait("weights", MiB(1), 1000), HasReason("WORK_GUARD_HELD"));
  EXPECT_THAT(worker->session->AllocateWait("weights", MiB(1), 0), IsOk());
  ASSERT_THAT(worker->session->WorkEnd(), IsOk());
  EXPECT_THAT(worker->session->AllocateWait("weights", MiB(1), 1000), IsOk());
}

// The session is over, but another process has the memory's descriptors: it is not free before that
// process has gone, too.
TEST_F(Reservations, last_fd_holder_dies) {
  Setup setup;
  setup.device = MiB(32);
  Start(setup);
  const auto holder = WorkerProcess::Start();
  ASSERT_THAT(holder, IsOk());
  ASSERT_THAT((*holder)->Ask("hold " + directory_ + "/worker.sock 24MiB"), IsOk());
  WaitForWorkers(0);
  EXPECT_EQ(Usage().budget.resident, Bytes(0));
  EXPECT_EQ(Usage().budget.other, MiB(24));

  const auto waiting = Spawn("waiting", "");
  const auto refused = waiting->Ask("alloc weights 30MiB");
  EXPECT_THAT(refused, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  ASSERT_THAT(waiting->Tell("alloc weights 30MiB 7 timeout=60000"), IsOk());
  WaitForQueue(1);
  (*holder)->process().Signal(SIGKILL);
  ASSERT_THAT(waiting->ReadAnswer(), IsOk());
  EXPECT_THAT(waiting->Ask("check 1 7"), IsOk());
  ExpectBooksAgree();
}

// The same under a reservation: promised, and not there yet.
TEST_F(Reservations, PromisedMemoryThatIsPinnedIsWaitedFor) {
  Setup setup;
  setup.device = MiB(32);
  Start(setup);
  const auto holder = WorkerProcess::Start();
  ASSERT_THAT(holder, IsOk());
  const auto reserved = core_->Reserve({"engine", {{"weights", MiB(32)}}, Bytes(0), seconds(600)});
  ASSERT_THAT(reserved, IsOk());
  const auto pinned = device_->Create(MiB(24));
  ASSERT_THAT(pinned, IsOk());
  EXPECT_EQ(Usage().budget.overcommitted, MiB(24));
  const auto waiting = Spawn("engine", reserved->id);
  EXPECT_THAT(waiting->Ask("alloc weights 30MiB"), HasReason("DEVICE_OUT_OF_MEMORY"));
  ASSERT_THAT(waiting->Tell("alloc weights 30MiB 7 timeout=60000"), IsOk());
  std::this_thread::sleep_for(milliseconds(50));
  ASSERT_THAT(device_->Release(*pinned), IsOk());
  ASSERT_THAT(waiting->ReadAnswer(), IsOk());
  EXPECT_THAT(waiting->Ask("check 1 7"), IsOk());
}

// Both want the bytes that are there for one. One has them, the other is told why not, every time.
TEST_F(Reservations, wake_races_allocation) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto sleeper = Connect("sleeper");
  const auto starter = Connect("starter");
  ASSERT_THAT(sleeper->Allocate("weights", MiB(10), 1), IsOk());
  int woke = 0;
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_THAT(Sleep(Only(*sleeper)), IsOk());
    std::atomic<int> ready{0};
    const auto meet = [&] {
      ++ready;
      while (ready != 2) std::this_thread::yield();
    };
    Result<DeviceAddress> allocated = Internal("TEST", "not run");
    std::thread allocating([&] {
      meet();
      if (round % 2 == 0) std::this_thread::yield();
      allocated = starter->session->Allocate("kv_cache", MiB(10));
    });
    meet();
    const auto woken = Wake(Only(*sleeper));
    allocating.join();
    ASSERT_NE(woken.ok(), allocated.ok())
        << round << woken.status().ToString() << allocated.status().ToString();
    const Status& loser = woken.ok() ? allocated.status() : woken.status();
    ASSERT_EQ(loser.reason(), "DEVICE_BUDGET_EXHAUSTED");
    ASSERT_EQ(loser.Number("requested_bytes"), MiB(10).value());
    ASSERT_LT(*loser.Number("available_bytes"), MiB(10).value());
    if (allocated.ok()) {
      ASSERT_THAT(starter->session->Free(*allocated), IsOk());
      ASSERT_THAT(Wake(Only(*sleeper)), IsOk());
    } else {
      ++woke;
    }
    ASSERT_TRUE(sleeper->AllHavePattern());
  }
  RecordProperty("woke", woke);
  ExpectBooksAgree();
}

}  // namespace
}  // namespace torpor
