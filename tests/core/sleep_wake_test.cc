#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

class SleepWake : public CoreFixture {};

TEST_F(SleepWake, BytesAndAddressesReturn) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(5), 1), IsOk());
  ASSERT_THAT(worker->Allocate("weights", KiB(64), 2), IsOk());
  ASSERT_THAT(worker->Allocate("kv_cache", MiB(8), 3), IsOk());
  ASSERT_THAT(worker->Allocate("other", MiB(1), 4), IsOk());
  ExpectBooksAgree();
  const Bytes free_before = Usage().budget.free;

  const auto slept = Sleep(All());
  ASSERT_THAT(slept, IsOk());
  ASSERT_EQ(slept->size(), 1u);
  EXPECT_EQ(slept->front().device, MiB(14) + KiB(64));
  EXPECT_EQ(slept->front().copied, MiB(6) + KiB(64));
  EXPECT_EQ(slept->front().discarded, MiB(8));
  EXPECT_EQ(slept->front().segments, 4);
  EXPECT_EQ(Usage().budget.free, free_before + slept->front().device);
  EXPECT_EQ(Stats(*worker, "weights").offloaded, MiB(5) + KiB(64));
  EXPECT_EQ(Stats(*worker, "kv_cache").discarded, MiB(8));
  ExpectBooksAgree();

  const auto woken = Wake(All());
  ASSERT_THAT(woken, IsOk());
  EXPECT_EQ(woken->front().device, slept->front().device);
  EXPECT_TRUE(worker->AllHavePattern("weights"));
  EXPECT_TRUE(worker->AllHavePattern("other"));
  EXPECT_TRUE(TestWorker::IsZero(worker->segments[2]));
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  ExpectBooksAgree();
}

TEST_F(SleepWake, sleep_twice_is_success) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  const auto again = Sleep(All());
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->front().segments, 0);
  EXPECT_EQ(again->front().device, Bytes(0));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, sleep_while_partly_asleep_keeps_what_sleeps) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(worker->Allocate("runtime", MiB(2), 2), IsOk());
  ASSERT_THAT(Sleep(Only(*worker, {"weights"})), IsOk());
  // Level 2 would discard weights, but those sleep already and keep their image.
  ASSERT_THAT(Sleep(All(), 2), IsOk());
  EXPECT_EQ(Stats(*worker, "weights").offloaded, MiB(2));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, ForcedDiscardDropsImages) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  SleepCommand command;
  command.selector = All();
  command.policies["weights"] = wire::Policy::kDiscard;
  command.force = true;
  command.deadline = In(seconds(10));
  ASSERT_THAT(core_->Sleep(command), IsOk());
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(TestWorker::IsZero(worker->segments[0]));
  ExpectBooksAgree();
}

TEST_F(SleepWake, unknown_tag_is_kept) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("lora_adapters", MiB(2), 1), IsOk());
  ASSERT_THAT(Sleep(All(), 2), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, wake_awake_is_success) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  const auto woken = Wake(All());
  ASSERT_THAT(woken, IsOk());
  EXPECT_EQ(woken->front().device, Bytes(0));
}

TEST_F(SleepWake, wake_with_one_awake_tag_wakes_the_others) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(worker->Allocate("kv_cache", MiB(3), 2), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(Only(*worker, {"weights"})), IsOk());
  EXPECT_TRUE(worker->AllHavePattern("weights"));
  EXPECT_EQ(Stats(*worker, "kv_cache").discarded, MiB(3));
  const auto rest = Wake(All());
  ASSERT_THAT(rest, IsOk());
  EXPECT_EQ(rest->front().device, MiB(3));
  EXPECT_TRUE(worker->AllHavePattern("weights"));
  EXPECT_TRUE(TestWorker::IsZero(worker->segments[1]));
}

// A trainer hands over new weights. What it holds, the worker's weights and its KV cache together
// would be more than the device has; two of them at a time are what is ever there.
TEST_F(SleepWake, wake_some_tags_first) {
  Setup setup;
  setup.device = MiB(20);
  Start(setup);
  const auto worker = Connect("a", wire::Quiesce::kGuard);
  ASSERT_THAT(worker->Allocate("weights", MiB(8), 1), IsOk());
  ASSERT_THAT(worker->Allocate("kv_cache", MiB(8), 2), IsOk());
  ASSERT_THAT(Sleep(All(), 2), IsOk());
  Bytes least_free = setup.device;
  std::atomic<bool> stop = false;
  std::thread watch([&] {
    while (!stop) {
      if (const auto info = device_->GetMemoryInfo(); info.ok()) {
        least_free = std::min(least_free, info->free);
      }
    }
  });
  const auto trainer = Connect("trainer");
  EXPECT_THAT(trainer->Allocate("weights", MiB(6), 7), IsOk());
  EXPECT_THAT(Wake(Only(*worker)), HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_THAT(Wake(Only(*worker, {"weights"})), IsOk());
  EXPECT_THAT(worker->session->WorkBegin({"kv_cache"}, milliseconds(0)), HasReason("ASLEEP"));
  EXPECT_THAT(worker->session->WorkBegin({"weights"}, std::nullopt), IsOk());
  const TestWorker::Segment& weights = worker->segments[0];
  EXPECT_TRUE(TestWorker::IsZero(weights));
  std::memcpy(reinterpret_cast<void*>(weights.address.value()),
              reinterpret_cast<const void*>(trainer->segments[0].address.value()),
              static_cast<size_t>(MiB(6).value()));
  EXPECT_THAT(worker->session->WorkEnd(), IsOk());
  EXPECT_THAT(trainer->Free(0), IsOk());
  EXPECT_THAT(Wake(Only(*worker, {"kv_cache"})), IsOk());
  stop = true;
  watch.join();

  EXPECT_LE(setup.device - least_free, MiB(16));
  EXPECT_TRUE(TestWorker::HasPattern({weights.address, MiB(6), 7, "weights"}));
  EXPECT_TRUE(TestWorker::IsZero(worker->segments[1]));
  ASSERT_THAT(worker->session->WorkBegin({}, milliseconds(0)), IsOk());
  ASSERT_THAT(worker->session->WorkEnd(), IsOk());
  ExpectBooksAgree();
}

TEST_F(SleepWake, discarded_memory_is_clean) {
  Setup setup;
  setup.device = MiB(8);
  Start(setup);
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("kv_cache", MiB(8), 1), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  {
    const auto neighbour = Connect("b");
    ASSERT_THAT(neighbour->Allocate("kv_cache", MiB(8), 2), IsOk());
  }
  WaitForWorkers(1);
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(TestWorker::IsZero(worker->segments[0]));
}

TEST_F(SleepWake, every_byte_returns) {
  Start();
  const auto worker = Connect("a");
  for (int i = 0; i < 40; ++i) {
    ASSERT_THAT(worker->Allocate("weights", KiB(64) * (1 + i * 7 % 13), 100 + i), IsOk());
  }
  for (int cycle = 0; cycle < 5; ++cycle) {
    ASSERT_THAT(Sleep(All()), IsOk());
    ASSERT_THAT(Wake(All()), IsOk());
    ASSERT_TRUE(worker->AllHavePattern()) << "after cycle " << cycle;
    for (size_t i = 0; i < worker->segments.size(); i += 3) {
      ++worker->segments[i].seed;
      TestWorker::Fill(worker->segments[i]);
    }
  }
  ExpectBooksAgree();
}

TEST_F(SleepWake, addresses_stay) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 2), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  // Allocations meanwhile, under the same tag, do not take the sleeping addresses.
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 3), IsOk());
  EXPECT_NE(worker->segments[2].address, worker->segments[0].address);
  EXPECT_NE(worker->segments[2].address, worker->segments[1].address);
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, no_host_room_changes_nothing) {
  Setup setup;
  setup.host_pool = MiB(4);
  Start(setup);
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(3), 1), IsOk());
  ASSERT_THAT(worker->Allocate("runtime", MiB(3), 2), IsOk());
  const Bytes free_before = Usage().budget.free;
  const auto slept = Sleep(All());
  EXPECT_THAT(slept, HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_EQ(slept.status().Number("budget_bytes"), MiB(4).value());
  EXPECT_EQ(Usage().budget.free, free_before);
  EXPECT_EQ(Usage().pool.used, Bytes(0));
  EXPECT_TRUE(worker->AllHavePattern());
  ExpectBooksAgree();
  // A part that fits can sleep.
  EXPECT_THAT(Sleep(Only(*worker, {"weights"})), IsOk());
}

TEST_F(SleepWake, wake_without_room_leaves_it_asleep) {
  Setup setup;
  setup.device = MiB(16);
  Start(setup);
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(10), 1), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  auto neighbour = Connect("b");
  ASSERT_THAT(neighbour->Allocate("weights", MiB(10), 2), IsOk());
  const auto woken = Wake(Only(*worker));
  EXPECT_THAT(woken, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(woken.status().Number("requested_bytes"), MiB(10).value());
  EXPECT_EQ(woken.status().Number("available_bytes"), MiB(6).value());
  EXPECT_EQ(Stats(*worker, "weights").offloaded, MiB(10));
  EXPECT_TRUE(neighbour->AllHavePattern());
  neighbour.reset();
  WaitForWorkers(1);
  ASSERT_THAT(Wake(Only(*worker)), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, TwoWorkersOneSleepsTheOtherGoesOn) {
  Start();
  const auto a = Connect("a");
  const auto b = Connect("b");
  ASSERT_THAT(a->Allocate("weights", MiB(4), 1), IsOk());
  ASSERT_THAT(b->Allocate("weights", MiB(4), 2), IsOk());
  ASSERT_THAT(Sleep(Only(*a)), IsOk());
  EXPECT_TRUE(b->AllHavePattern());
  ASSERT_THAT(b->Allocate("weights", MiB(1), 3), IsOk());
  ASSERT_THAT(Wake(Only(*a)), IsOk());
  EXPECT_TRUE(a->AllHavePattern());
  EXPECT_TRUE(b->AllHavePattern());
}

TEST_F(SleepWake, OwnSleepOfAWorkerThatStatedNothing) {
  Start();
  const auto worker = Connect("a", wire::Quiesce::kNone);
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  const auto refused = Sleep(All());
  EXPECT_THAT(refused, HasReason("WORKER_NOT_QUIESCIBLE"));
  EXPECT_THAT(refused, HasCode(Code::kFailedPrecondition));
  EXPECT_TRUE(worker->AllHavePattern());
  wire::Sleep own;
  own.level = 1;
  const auto slept = worker->session->Sleep(own);
  ASSERT_THAT(slept, IsOk());
  EXPECT_THAT(slept->status, IsOk());
  EXPECT_EQ(slept->device, MiB(2));
  // Sleeping what sleeps is success, also from outside.
  EXPECT_THAT(Sleep(All()), IsOk());
  const auto woken = worker->session->WakeUp({});
  ASSERT_THAT(woken, IsOk());
  EXPECT_THAT(woken->status, IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, sleep_with_kernels_in_flight) {
  Start();
  const auto worker = Connect("a", wire::Quiesce::kGuard);
  ASSERT_THAT(worker->Allocate("weights", MiB(4), 1), IsOk());
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0;
  std::atomic<bool> right = true;
  // Unmapped memory under this thread's hands would kill the process.
  std::thread compute([&] {
    while (!stop) {
      if (!worker->session->WorkBegin({}, std::nullopt).ok()) break;
      right = right && worker->AllHavePattern();
      ++rounds;
      (void)worker->session->WorkEnd();
    }
  });
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(Sleep(All()), IsOk());
    ASSERT_THAT(Wake(All()), IsOk());
    const int before = rounds;
    while (rounds == before) std::this_thread::yield();
  }
  stop = true;
  compute.join();
  EXPECT_TRUE(right);
}

TEST_F(SleepWake, sleep_while_requests_run_is_refused_or_waits) {
  Setup setup;
  setup.worker_deadline = milliseconds(300);
  Start(setup);
  const auto worker = Connect("a", wire::Quiesce::kGuard);
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(worker->session->WorkBegin({}, std::nullopt), IsOk());
  Result<std::vector<WorkerOutcome>> slept = Sleep(All());
  EXPECT_THAT(slept, HasReason("WORKER_SILENT"));
  EXPECT_THAT(slept, HasCode(Code::kDeadlineExceeded));
  EXPECT_TRUE(worker->AllHavePattern());
  ASSERT_THAT(worker->session->WorkEnd(), IsOk());
  WaitForRest();
  ASSERT_THAT(worker->session->WorkBegin({}, seconds(5)), IsOk());
  ASSERT_THAT(worker->session->WorkEnd(), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  EXPECT_THAT(worker->session->WorkBegin({}, milliseconds(50)), HasCode(Code::kDeadlineExceeded));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, OwnSleepInsideTheWorkGuardIsRefused) {
  Start();
  const auto worker = Connect("a", wire::Quiesce::kGuard);
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(worker->session->WorkBegin({}, std::nullopt), IsOk());
  wire::Sleep own;
  own.level = 1;
  EXPECT_THAT(worker->session->Sleep(own), HasReason("WORK_GUARD_HELD"));
  ASSERT_THAT(worker->session->WorkEnd(), IsOk());
}

TEST_F(SleepWake, AWorkerHasSoManyOperationsOfItsOwnAtATime) {
  Start();
  const auto worker = Connect("a", wire::Quiesce::kGuard);
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  // They wait for this.
  ASSERT_THAT(worker->session->WorkBegin({}, std::nullopt), IsOk());
  std::atomic<int> slept = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> callers;
  callers.reserve(Core::kMaxOwnOperations + 4);
  for (int i = 0; i < Core::kMaxOwnOperations + 4; ++i) {
    callers.emplace_back([&] {
      wire::Sleep own;
      own.level = 1;
      const auto reply = worker->session->Sleep(own);
      const Status status = reply.ok() ? reply->status : reply.status();
      if (status.ok()) {
        ++slept;
      } else {
        EXPECT_THAT(status, HasReason("TOO_MANY_CALLS"));
        ++refused;
      }
    });
  }
  const TimePoint until = Clock::Real().Now() + seconds(60);
  while (refused < 4 && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(refused, 4);
  ASSERT_THAT(worker->session->WorkEnd(), IsOk());
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(slept, Core::kMaxOwnOperations);
  const auto woken = worker->session->WakeUp({});
  ASSERT_THAT(woken, IsOk());
  EXPECT_THAT(woken->status, IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
}

TEST_F(SleepWake, free_while_asleep) {
  Start();
  const auto worker = Connect("a");
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(worker->Allocate("weights", MiB(1), 1 + i), IsOk());
  }
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(worker->Free(1), IsOk());
  EXPECT_EQ(Usage().pool.used, MiB(3));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
  ExpectBooksAgree();
}

TEST_F(SleepWake, FreedPartsOfMergedExtentsAreReusedInPlace) {
  Start();
  const auto worker = Connect("a");
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(worker->Allocate("weights", MiB(1), 1 + i), IsOk());
  }
  EXPECT_EQ(Stats(*worker, "weights").extents, 4);
  ASSERT_THAT(Sleep(All()), IsOk());
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_EQ(Stats(*worker, "weights").extents, 1);
  const DeviceAddress freed = worker->segments[1].address;
  ASSERT_THAT(worker->Free(1), IsOk());
  EXPECT_EQ(Stats(*worker, "weights").stranded, MiB(1));
  ExpectBooksAgree();
  ASSERT_THAT(worker->Allocate("weights", MiB(1), 9), IsOk());
  EXPECT_EQ(worker->segments.back().address, freed);
  EXPECT_EQ(Stats(*worker, "weights").stranded, Bytes(0));
  ASSERT_THAT(worker->Free(0), IsOk());
  ASSERT_THAT(Sleep(All()), IsOk());
  EXPECT_EQ(Usage().budget.resident, Bytes(0));
  ASSERT_THAT(Wake(All()), IsOk());
  EXPECT_TRUE(worker->AllHavePattern());
  while (!worker->segments.empty()) ASSERT_THAT(worker->Free(0), IsOk());
  EXPECT_EQ(Usage().budget.resident, Bytes(0));
  ExpectBooksAgree();
}

TEST_F(SleepWake, ARefusalNamesTheWorkersOwnEndpoint) {
  Start();
  const auto worker = Connect("a", wire::Quiesce::kNone);
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  const std::string endpoint = "POST http://localhost:8000/sleep";
  ASSERT_THAT(worker->session->SetSleepEndpoint(endpoint), IsOk());
  EXPECT_EQ(Usage().workers.front().info.sleep_endpoint, endpoint);
  const auto refused = Sleep(All());
  EXPECT_THAT(refused, HasReason("WORKER_NOT_QUIESCIBLE"));
  EXPECT_EQ(refused.status().details().at("sleep_endpoint"), endpoint);
  EXPECT_THAT(refused.status().message(), testing::HasSubstr(endpoint));

  const std::string longest(wire::kLongestEndpoint, 'x');
  EXPECT_THAT(worker->session->SetSleepEndpoint(longest), IsOk());
  for (const std::string& bad : {longest + "x", std::string("POST\n"), std::string("\xff"),
                                 std::string("\0", 1), std::string("\x1b[2J")}) {
    const Status status = worker->session->SetSleepEndpoint(bad);
    EXPECT_THAT(status, HasReason("BAD_ENDPOINT"));
    EXPECT_THAT(status, HasCode(Code::kInvalidArgument));
    EXPECT_EQ(status.Number("length"), static_cast<int64_t>(bad.size()));
  }
  EXPECT_EQ(Usage().workers.front().info.sleep_endpoint, longest);

  ASSERT_THAT(worker->session->SetSleepEndpoint(""), IsOk());
  EXPECT_EQ(Sleep(All()).status().details().count("sleep_endpoint"), 0u);
  // Who can be quieted is.
  ASSERT_THAT(worker->session->SetSleepEndpoint(endpoint), IsOk());
  ASSERT_THAT(worker->session->SetQuiesce(wire::Quiesce::kSynchronize), IsOk());
  EXPECT_THAT(Sleep(All()), IsOk());
}

TEST_F(SleepWake, OutcomesThatDifferAreReportedOneByOne) {
  Start();
  const auto a = Connect("a", wire::Quiesce::kNone);
  const auto b = Connect("b");
  ASSERT_THAT(a->Allocate("weights", MiB(2), 1), IsOk());
  ASSERT_THAT(b->Allocate("weights", MiB(2), 2), IsOk());
  const auto slept = Sleep(All());
  ASSERT_THAT(slept, IsOk());
  ASSERT_EQ(slept->size(), 2u);
  EXPECT_THAT((*slept)[0].status, HasReason("WORKER_NOT_QUIESCIBLE"));
  EXPECT_THAT((*slept)[1].status, IsOk());
}

TEST_F(SleepWake, BadCommandsHaveTheirReasons) {
  Start();
  const auto worker = Connect("a");
  ASSERT_THAT(worker->Allocate("weights", MiB(2), 1), IsOk());
  EXPECT_THAT(Sleep(Selector()), HasReason("EMPTY_SELECTOR"));
  EXPECT_THAT(Sleep(All(), 3), HasReason("BAD_LEVEL"));
  EXPECT_THAT(Sleep(All(), 0), HasReason("POLICY_MISSING"));
  Selector unknown;
  unknown.workers = {"nobody"};
  EXPECT_THAT(Sleep(unknown), HasReason("UNKNOWN_WORKER"));
  EXPECT_THAT(Sleep(Only(*worker, {"kv_cache"})), HasReason("NOTHING_SELECTED"));
  EXPECT_THAT(Sleep(Only(*worker, {"bad tag"})), HasReason("BAD_TAG"));
  Selector both = All();
  both.tags = {"weights"};
  EXPECT_THAT(Sleep(both), HasReason("CONTRADICTORY_SELECTOR"));
  SleepCommand command;
  command.selector = All();
  command.level = 1;
  command.policies["weights"] = wire::Policy::kKeep;
  EXPECT_THAT(core_->Sleep(command), HasReason("LEVEL_AND_POLICIES"));
  EXPECT_TRUE(worker->AllHavePattern());
}

}  // namespace
}  // namespace torpor
