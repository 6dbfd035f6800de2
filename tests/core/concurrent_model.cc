#include "tests/core/concurrent_model.h"

#include <array>
#include <thread>
#include <utility>

#include "lib/base/descriptors.h"
#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

constexpr std::array<const char*, 3> kTags = {"weights", "kv_cache", "other"};
// What one worker may have, so that it always fits alone.
constexpr Bytes kMostOfOne = MiB(6);
// Time that does not pass.
constexpr Duration kLong = std::chrono::hours(1);

bool OneIn(std::mt19937_64& random, size_t n) { return random() % n == 0; }

}  // namespace

void ConcurrentModelFixture::ExpectRefusal(const Status& status,
                                           const std::set<std::string>& reasons) {
  EXPECT_EQ(reasons.count(status.reason()), 1u) << status.ToString();
}

bool ConcurrentModelFixture::WithMemory(const Owner& owner, const ModelSegment& segment,
                                        const std::function<void()>& work) {
  client::Session& session = *owner.real->session;
  const Status begun = session.WorkBegin({segment.memory.tag}, milliseconds(20));
  if (!begun.ok()) {
    ExpectRefusal(begun, {"ASLEEP"});
    return false;
  }
  work();
  EXPECT_THAT(session.WorkEnd(), IsOk());
  return true;
}

void ConcurrentModelFixture::CheckBytes(ModelSegment& segment) {
  if (segment.memory.tag == "kv_cache" && TestWorker::IsZero(segment.memory)) segment.zero = true;
  EXPECT_TRUE(segment.zero ? TestWorker::IsZero(segment.memory)
                           : TestWorker::HasPattern(segment.memory))
      << "wrong bytes in " << segment.memory.size.value() << " bytes of " << segment.memory.tag;
}

void ConcurrentModelFixture::Allocate(Owner& owner, Random& random) {
  const Bytes size = kPage * static_cast<int64_t>(1 + random() % 16);
  if (owner.allocated + size > kMostOfOne) return;
  const std::string tag = kTags[random() % kTags.size()];
  const auto address = owner.real->session->Allocate(tag, size);
  if (!address.ok()) {
    ExpectRefusal(address.status(), {"DEVICE_BUDGET_EXHAUSTED", "RESERVATION_TOO_SMALL",
                                     "RESERVATION_RELEASED", "RESERVATION_ENDED"});
    return;
  }
  ModelSegment segment;
  segment.memory = {*address, size, ++owner.last_seed, tag};
  // What cannot be written, because a sleep came first, is not kept.
  if (WithMemory(owner, segment, [&] { TestWorker::Fill(segment.memory); })) {
    owner.allocated += size;
    owner.segments.push_back(segment);
  } else {
    EXPECT_THAT(owner.real->session->Free(*address), IsOk());
  }
}

void ConcurrentModelFixture::Reconnect(Owner& owner, Random& random) {
  owner.segments.clear();
  owner.allocated = Bytes(0);
  owner.real.reset();
  client::Session::Options options;
  options.name = owner.name;
  options.quiesce = wire::Quiesce::kGuard;
  if (OneIn(random, 2)) {
    ReservationSpec spec;
    spec.name = owner.name;
    spec.parts = {{"all", kPage * static_cast<int64_t>(1 + random() % 32)}};
    spec.ttl = kLong;
    spec.hold = OneIn(random, 2);
    const auto made = core_->Reserve(spec);
    if (made.ok()) options.reservation = made->id;
  }
  auto connected = TryConnect(options);
  ASSERT_THAT(connected, IsOk());
  owner.real = *std::move(connected);
}

void ConcurrentModelFixture::OwnerStep(Owner& owner, Random& random) {
  const size_t what = random() % 20;
  if (what == 0) return Reconnect(owner, random);
  if (what < 8 || owner.segments.empty()) return Allocate(owner, random);
  const size_t index = random() % owner.segments.size();
  ModelSegment& segment = owner.segments[index];
  if (what < 12) {
    const DeviceAddress address = segment.memory.address;
    owner.allocated -= segment.memory.size;
    owner.segments.erase(owner.segments.begin() + static_cast<ptrdiff_t>(index));
    EXPECT_THAT(owner.real->session->Free(address), IsOk());
    return;
  }
  WithMemory(owner, segment, [&] {
    CheckBytes(segment);
    if (what < 16) return;
    segment.memory.seed = ++owner.last_seed;
    segment.zero = false;
    TestWorker::Fill(segment.memory);
  });
}

void ConcurrentModelFixture::MoverStep(Random& random) {
  Selector selector;
  if (OneIn(random, 4)) {
    selector.all = true;
  } else {
    selector.workers = {"owner-" + std::to_string(random() % kOwners)};
    if (OneIn(random, 3)) selector.tags = {kTags[random() % kTags.size()]};
  }
  const bool sleep = OneIn(random, 2);
  const auto result =
      sleep ? CoreFixture::Sleep(selector, 1, seconds(60)) : Wake(selector, seconds(60));
  const std::set<std::string> reasons = {"OPERATION_IN_PROGRESS", "WORKER_GONE",
                                         "UNKNOWN_WORKER",        "NOTHING_SELECTED",
                                         "HOST_POOL_EXHAUSTED",   "DEVICE_BUDGET_EXHAUSTED",
                                         "ROLLBACK_PENDING",      "OPERATION_CANCELLED"};
  if (!result.ok()) return ExpectRefusal(result.status(), reasons);
  for (const WorkerOutcome& outcome : *result) {
    if (!outcome.status.ok()) ExpectRefusal(outcome.status, reasons);
  }
}

void ConcurrentModelFixture::ReserverStep(Random& random) {
  ReservationSpec spec;
  spec.name = "reserver";
  spec.parts = {{"all", kPage * static_cast<int64_t>(1 + random() % 64)}};
  spec.host = kPage * static_cast<int64_t>(random() % 32);
  spec.ttl = kLong;
  const auto made = core_->Reserve(spec);
  if (!made.ok()) {
    return ExpectRefusal(made.status(), {"DEVICE_BUDGET_EXHAUSTED", "HOST_POOL_EXHAUSTED"});
  }
  const auto released = core_->Release(made->id);
  ASSERT_THAT(released, IsOk());
  EXPECT_EQ(released->device, spec.device());
  EXPECT_EQ(released->host, spec.host);
}

void ConcurrentModelFixture::ReaderStep() {
  const auto usage = core_->Usage();
  ASSERT_THAT(usage, IsOk());
  const BudgetStats& budget = usage->budget;
  EXPECT_EQ(budget.overcommitted, Bytes(0));
  EXPECT_GE(budget.pending, Bytes(0));
  EXPECT_GE(budget.other, Bytes(0));
  EXPECT_EQ(budget.total, budget.free + budget.resident + budget.context + budget.other);
}

std::optional<Result<ReserveResult>> ConcurrentModelFixture::Wait::Take() {
  MutexLock lock(mutex);
  return std::exchange(answer, std::nullopt);
}

void ConcurrentModelFixture::WaiterStep(Random& random) {
  // So that its patience ends, and allocations leave it what it needs.
  clock_.Advance(milliseconds(100));
  if (waiting_ == nullptr) {
    waiting_ = std::make_shared<Wait>();
    ReservationSpec spec;
    spec.name = "waiter";
    spec.parts = {{"all", kPage * static_cast<int64_t>(40 + random() % 100)}};
    spec.ttl = kLong;
    core_->ReserveAsync(core_->NewTicket(), spec, clock_.Now() + kLong,
                        [wait = waiting_](Result<ReserveResult> result) {
                          MutexLock lock(wait->mutex);
                          wait->answer = std::move(result);
                        });
  }
  const auto answer = waiting_->Take();
  if (!answer.has_value()) return std::this_thread::sleep_for(milliseconds(1));
  waiting_.reset();
  ASSERT_THAT(*answer, IsOk());
  EXPECT_THAT(core_->Release((*answer)->id), IsOk());
}

void ConcurrentModelFixture::ComeToRest(std::vector<Owner>& owners) {
  WaitForRest();
  WaitForWorkers(kOwners);  // not those that reconnected
  for (const ReservationStats& stats : Usage().reservations) {
    if (stats.name == "waiter") continue;  // its own thread's
    EXPECT_THAT(core_->Release(stats.id), IsOk());
  }
  SleepCommand sleep;
  sleep.selector = All();
  for (const char* const tag : kTags) sleep.policies[tag] = wire::Policy::kOffload;
  sleep.deadline = In(seconds(60));
  ASSERT_THAT(core_->Sleep(sleep), IsOk());
  Random random(1);
  const TimePoint until = In(seconds(20));
  while (waiting_ != nullptr) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "who waits is passed over";
    WaiterStep(random);
  }
  // One after the other, since together they need not fit.
  for (Owner& owner : owners) {
    sleep.deadline = In(seconds(60));
    ASSERT_THAT(core_->Sleep(sleep), IsOk());
    ASSERT_THAT(Wake(Only(*owner.real)), IsOk());
    for (ModelSegment& segment : owner.segments) {
      SCOPED_TRACE(owner.name);
      CheckBytes(segment);
    }
    Bytes resident{};
    for (const char* const tag : kTags) resident += Stats(*owner.real, tag).resident;
    EXPECT_EQ(resident, owner.allocated);
    EXPECT_EQ(Usage().budget.resident, resident);
    ExpectBooksAgree();
  }
}

void ConcurrentModelFixture::Run(uint64_t seed, int steps) {
  Setup setup;
  setup.device = kDevice;
  setup.granularity = kPage;
  setup.host_pool = MiB(64);
  Start(setup);
  base_fds_ = CountDescriptors().open;
  Random random(seed);
  std::vector<Owner> owners(kOwners);
  for (int i = 0; i < kOwners; ++i) {
    owners[static_cast<size_t>(i)].name = "owner-" + std::to_string(i);
    Reconnect(owners[static_cast<size_t>(i)], random);
  }
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    std::vector<std::thread> threads;
    std::atomic<int> busy = kOwners;
    const auto start = [&](auto step) {
      threads.emplace_back([step, generator = Random(random())]() mutable { step(generator); });
    };
    for (Owner& owner : owners) {
      start([&, steps](Random& generator) {
        for (int i = 0; i < steps; ++i) OwnerStep(owner, generator);
        --busy;
      });
    }
    const auto while_busy = [&](auto step) {
      start([&busy, step](Random& generator) {
        while (busy > 0) step(generator);
      });
    };
    while_busy([this](Random& generator) { MoverStep(generator); });
    while_busy([this](Random& generator) { MoverStep(generator); });
    while_busy([this](Random& generator) { ReserverStep(generator); });
    while_busy([this](Random&) { ReaderStep(); });
    while_busy([this](Random& generator) { WaiterStep(generator); });
    for (std::thread& thread : threads) thread.join();
    SCOPED_TRACE("round " + std::to_string(round));
    ComeToRest(owners);
    if (HasFatalFailure()) return;
  }
  owners.clear();
  WaitForWorkers(0);
  const UsageReport usage = Usage();
  EXPECT_EQ(usage.budget.free, kDevice);
  EXPECT_EQ(usage.pool.used, Bytes(0));
  EXPECT_EQ(keeper_.extents(), 0u);
  EXPECT_TRUE(keeper_.segments().empty());
  EXPECT_TRUE(DescriptorsBecome(base_fds_)) << CountDescriptors().open << ", not " << base_fds_;
}

}  // namespace torpor
