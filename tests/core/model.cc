#include "tests/core/model.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "daemon/core/policy.h"
#include "lib/base/descriptors.h"
#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

constexpr std::array<const char*, 4> kTags = {"weights", "kv_cache", "workspace", "other"};

const std::set<std::string> kReservationOver = {"UNKNOWN_RESERVATION", "RESERVATION_EXPIRED",
                                                "RESERVATION_RELEASED", "RESERVATION_ENDED"};

bool Selects(const std::set<std::string>& tags, const std::string& tag) {
  return tags.empty() || tags.count(tag) != 0;
}

// Without tags everything is selected, and be it nothing.
bool HasAny(const ModelWorker& worker, const std::set<std::string>& tags) {
  return tags.empty() || std::any_of(worker.segments.begin(), worker.segments.end(),
                                     [&](const ModelSegment& segment) {
                                       return tags.count(segment.memory.tag) != 0;
                                     });
}

bool Asleep(const ModelSegment& segment) { return segment.state != SegmentState::kResident; }

}  // namespace

void ModelFixture::StartModel(uint64_t seed, bool faults) {
  Setup setup;
  setup.device = kDevice;
  setup.granularity = kPage;
  setup.host_pool = kHostPool;
  setup.safety_reserve = kSafetyReserve;
  Start(setup);
  random_.seed(seed);
  faults_ = faults;
  base_fds_ = CountDescriptors().open;
  ModelWorker probe;
  probe.name = "probe";
  Connect(probe);
  worker_fds_ = CountDescriptors().open - base_fds_;
  Disconnect(probe);
  workers_.resize(kWorkers);
  for (int i = 0; i < kWorkers; ++i) {
    workers_[static_cast<size_t>(i)].name = "w" + std::to_string(i);
    Connect(workers_[static_cast<size_t>(i)]);
  }
  Check();
}

void ModelFixture::Step() {
  struct Operation {
    const char* name;
    size_t weight;
    void (ModelFixture::*run)();
  };
  static constexpr std::array<Operation, 12> kOperations = {
      {{"allocate", 6, &ModelFixture::Allocate},
       {"write", 2, &ModelFixture::Write},
       {"free", 3, &ModelFixture::Free},
       {"sleep", 4, &ModelFixture::Sleep},
       {"wake", 4, &ModelFixture::Wake},
       {"reserve", 1, &ModelFixture::Reserve},
       {"release", 1, &ModelFixture::Release},
       {"renew", 1, &ModelFixture::Renew},
       {"reconnect", 1, &ModelFixture::Reconnect},
       {"wait", 2, &ModelFixture::Wait},
       {"stop waiting", 1, &ModelFixture::StopWaiting},
       {"expire", 1, &ModelFixture::Expire}}};
  size_t all = 0;
  for (const Operation& operation : kOperations) all += operation.weight;
  size_t at = Random(all);
  const Operation* chosen = kOperations.data();
  while (at >= chosen->weight) at -= (chosen++)->weight;
  before_ = Usage();
  fault_.clear();
  (this->*chosen->run)();
  SCOPED_TRACE(chosen->name + fault_);
  if (!HasFatalFailure()) SettleWaiters();
  if (!HasFatalFailure()) Check();
}

void ModelFixture::Finish() {
  for (ModelWorker& worker : workers_) Disconnect(worker);
  ReleaseAll();
  // Now each has its turn, the first one first.
  while (!waiters_.empty()) {
    const size_t waiting = waiters_.size();
    SettleWaiters();
    ASSERT_LT(waiters_.size(), waiting) << "who waits is passed over";
    ReleaseAll();
  }
  const UsageReport usage = Usage();
  EXPECT_EQ(usage.budget.resident, Bytes(0));
  EXPECT_EQ(usage.budget.free, kDevice);
  EXPECT_EQ(usage.budget.promised, Bytes(0));
  EXPECT_EQ(usage.budget.pending, Bytes(0));
  EXPECT_EQ(usage.pool.used, Bytes(0));
  EXPECT_EQ(usage.pool_promised, Bytes(0));
  EXPECT_TRUE(usage.workers.empty());
  EXPECT_TRUE(usage.reservations.empty());
  EXPECT_TRUE(usage.queue.empty());
  EXPECT_EQ(keeper_.extents(), 0u);
  EXPECT_TRUE(keeper_.segments().empty());
  EXPECT_TRUE(DescriptorsBecome(base_fds_)) << CountDescriptors().open << ", not " << base_fds_;
}

void ModelFixture::ReleaseAll() {
  for (auto& [id, reservation] : reservations_) {
    if (Live(id)) {
      EXPECT_THAT(core_->Release(id), IsOk());
    }
    reservation.over = true;
  }
}

// --- operations

void ModelFixture::Connect(ModelWorker& worker) {
  worker.real = CoreFixture::Connect(worker.name, wire::Quiesce::kSynchronize, worker.reservation);
  ASSERT_NE(worker.real, nullptr);
  if (!worker.reservation.empty()) ++reservations_.at(worker.reservation).holders;
}

void ModelFixture::Disconnect(ModelWorker& worker) {
  const WorkerId id = worker.real->id;
  worker.real.reset();
  worker.segments.clear();
  const std::string left = std::exchange(worker.reservation, "");
  if (!left.empty()) {
    ModelReservation& reservation = reservations_.at(left);
    if (--reservation.holders == 0 && !reservation.keep) reservation.over = true;
  }
  const TimePoint until = In(seconds(20));
  for (;;) {
    before_ = Usage();
    const bool there = std::any_of(before_.workers.begin(), before_.workers.end(),
                                   [&](const WorkerStats& stats) { return stats.info.id == id; });
    if (!there && (left.empty() || Live(left) || Listed(left) == nullptr)) return;
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "the end of a worker is not noticed";
    std::this_thread::sleep_for(milliseconds(1));
  }
}

bool ModelFixture::WithFault(const ModelWorker& worker, const std::function<void()>& operation) {
  FaultDriver* faulty = nullptr;
  if (faults_ && OneIn(2)) {
    const bool in_worker = OneIn(3);
    faulty = in_worker ? worker.real->faults.get() : driver_.get();
    FaultDriver::Which which;
    if (OneIn(2)) which = static_cast<CallKind>(Random(kCallKinds));
    const auto n = static_cast<int64_t>(1 + Random(which.has_value() ? 3 : 12));
    faulty->FailNth(which, n, Internal("INJECTED_FAULT", "made to fail"));
    fault_ = std::string(", with a fault in ") + (in_worker ? worker.name : "the daemon") +
             " at call " + std::to_string(n) + " of " +
             (which.has_value() ? CallName(*which) : "any kind");
  }
  operation();
  const bool faulted = faulty != nullptr && faulty->ClearFaults() == 0;
  // What a worker could not unmap, it unmaps when work ends.
  if (faulted && worker.real->session->WorkBegin({"none"}, seconds(20)).ok()) {
    EXPECT_THAT(worker.real->session->WorkEnd(), IsOk());
  }
  WaitForRest();
  return faulted;
}

void ModelFixture::Allocate() {
  ModelWorker& worker = AnyWorker();
  const std::string tag = kTags[Random(kTags.size())];
  const Bytes size = kPage * static_cast<int64_t>(1 + Random(OneIn(8) ? 40 : 12));
  const bool live = worker.reservation.empty() || Live(worker.reservation);
  // What the first waiter needs may be kept for it.
  const bool free = worker.reservation.empty();
  const bool fits =
      size <= (free ? before_.budget.available - FirstAwaited() : LeftDevice(worker.reservation));
  const bool may_fit = free ? size <= before_.budget.available : fits;
  Result<DeviceAddress> address = Internal("NOT_RUN", "no answer yet");
  const bool faulted =
      WithFault(worker, [&] { address = worker.real->session->Allocate(tag, size); });
  if (!address.ok()) {
    if (faulted) return;
    EXPECT_FALSE(live && fits) << address.status().ToString();
    EXPECT_TRUE(live || kReservationOver.count(address.status().reason()) != 0)
        << address.status().ToString();
    return;
  }
  const Bytes growth = Usage().budget.resident - before_.budget.resident;
  if (growth != Bytes(0)) {
    EXPECT_EQ(growth, size);
    EXPECT_TRUE(live && may_fit) << "granted beyond the budget";
  }
  ModelSegment segment;
  segment.memory = {*address, size, ++last_seed_, tag};
  // New memory is clear; a freed part that is used again need not be.
  if (growth != Bytes(0)) {
    EXPECT_TRUE(TestWorker::IsZero(segment.memory));
  }
  TestWorker::Fill(segment.memory);
  worker.segments.push_back(segment);
}

void ModelFixture::Write() {
  ModelWorker& worker = AnyWorker();
  if (worker.segments.empty()) return;
  ModelSegment& segment = worker.segments[Random(worker.segments.size())];
  if (Asleep(segment)) return;
  segment.memory.seed = ++last_seed_;
  segment.zero = false;
  TestWorker::Fill(segment.memory);
}

void ModelFixture::Free() {
  ModelWorker& worker = AnyWorker();
  if (worker.segments.empty()) return;
  const size_t index = Random(worker.segments.size());
  const DeviceAddress address = worker.segments[index].memory.address;
  worker.segments.erase(worker.segments.begin() + static_cast<ptrdiff_t>(index));
  Status freed;
  const bool faulted = WithFault(worker, [&] { freed = worker.real->session->Free(address); });
  EXPECT_TRUE(freed.ok() || faulted) << freed.ToString();
}

wire::Policy ModelFixture::SleepPlan::Of(const std::string& tag) const {
  if (level != 0) return LevelPolicy(level)(tag);
  const auto found = policies.find(tag);
  return found == policies.end() ? wire::Policy::kKeep : found->second;
}

ModelFixture::SleepPlan ModelFixture::RandomSleepPlan() {
  SleepPlan plan;
  plan.force = OneIn(4);
  if (OneIn(2)) {
    plan.level = OneIn(2) ? 1 : 2;
    return plan;
  }
  for (const char* const tag : kTags) {
    if (OneIn(3)) continue;
    plan.policies[tag] = static_cast<wire::Policy>(Random(3));
  }
  if (plan.policies.empty()) plan.policies["weights"] = wire::Policy::kOffload;
  return plan;
}

std::set<std::string> ModelFixture::AnyTags() {
  std::set<std::string> tags;
  if (OneIn(2)) return tags;
  for (const char* const tag : kTags) {
    if (OneIn(2)) tags.insert(tag);
  }
  return tags;
}

Bytes ModelFixture::NeedsHost(const ModelWorker& worker, const SleepPlan& plan,
                              const std::set<std::string>& tags) {
  Bytes sum{};
  for (const ModelSegment& segment : worker.segments) {
    const std::string& tag = segment.memory.tag;
    if (!Asleep(segment) && Selects(tags, tag) && plan.Of(tag) == wire::Policy::kOffload) {
      sum += segment.memory.size;
    }
  }
  return sum;
}

void ModelFixture::ApplySleep(ModelWorker& worker, const SleepPlan& plan,
                              const std::set<std::string>& tags) {
  for (ModelSegment& segment : worker.segments) {
    const wire::Policy policy = plan.Of(segment.memory.tag);
    if (!Selects(tags, segment.memory.tag) || policy == wire::Policy::kKeep) continue;
    if (segment.state == SegmentState::kResident) {
      segment.state =
          policy == wire::Policy::kOffload ? SegmentState::kOffloaded : SegmentState::kDiscarded;
    } else if (policy == wire::Policy::kDiscard && plan.force) {
      segment.state = SegmentState::kDiscarded;
    }
  }
}

Bytes ModelFixture::NeedsDevice(const ModelWorker& worker, const std::set<std::string>& tags) {
  Bytes sum{};
  for (const ModelSegment& segment : worker.segments) {
    if (Asleep(segment) && Selects(tags, segment.memory.tag)) sum += segment.memory.size;
  }
  return sum;
}

void ModelFixture::ApplyWake(ModelWorker& worker, const std::set<std::string>& tags) {
  for (ModelSegment& segment : worker.segments) {
    if (!Asleep(segment) || !Selects(tags, segment.memory.tag)) continue;
    if (segment.state == SegmentState::kDiscarded) segment.zero = true;
    segment.state = SegmentState::kResident;
  }
}

void ModelFixture::Settle(const Result<std::vector<WorkerOutcome>>& result,
                          const std::vector<ModelWorker*>& selected, bool must_work, bool may_work,
                          const std::set<std::string>& reasons, bool faulted,
                          const std::function<void(ModelWorker&)>& apply) {
  for (ModelWorker* const worker : selected) {
    Status status = result.status();
    if (result.ok()) {
      const auto outcome =
          std::find_if(result->begin(), result->end(),
                       [&](const WorkerOutcome& one) { return one.worker == worker->real->id; });
      ASSERT_NE(outcome, result->end()) << worker->name << " has no result";
      status = outcome->status;
    }
    if (status.ok()) {
      EXPECT_TRUE(may_work) << worker->name << " got what is not there";
      apply(*worker);
    } else if (!faulted) {
      EXPECT_FALSE(must_work) << worker->name << ": " << status.ToString();
      EXPECT_EQ(reasons.count(status.reason()), 1u) << worker->name << ": " << status.ToString();
    }
  }
}

void ModelFixture::Sleep() {
  const SleepPlan plan = RandomSleepPlan();
  std::set<std::string> tags = AnyTags();
  ModelWorker& first = AnyWorker();
  std::vector<ModelWorker*> selected = {&first};
  SleepCommand command;
  if (OneIn(5)) {
    tags.clear();
    selected.clear();
    for (ModelWorker& worker : workers_) selected.push_back(&worker);
    command.selector.all = true;
  } else {
    command.selector.workers = {first.name};
    command.selector.tags.assign(tags.begin(), tags.end());
  }
  command.level = plan.level;
  command.policies = plan.policies;
  command.force = plan.force;
  command.deadline = In(seconds(60));

  Bytes uncovered{};
  for (const ModelWorker* const worker : selected) {
    const Bytes need = NeedsHost(*worker, plan, tags);
    uncovered += std::max(Bytes(0), need - LeftHost(worker->reservation));
  }
  // A reservation that several of them share covers the bytes of one only; and who waits may be
  // served with the device memory of the first before the last has its room in the pool.
  const bool alone = selected.size() == 1;
  Bytes all{};
  for (const ModelWorker* const worker : selected) all += NeedsHost(*worker, plan, tags);
  for (const WaiterStats& waiter : before_.queue) all += waiter.host;
  const bool fits = (alone ? uncovered : all) <= HostAvailable();
  std::set<std::string> reasons = {"HOST_POOL_EXHAUSTED"};
  const bool nothing = !HasAny(first, tags);
  if (nothing) reasons.insert("NOTHING_SELECTED");

  Result<std::vector<WorkerOutcome>> result = Internal("NOT_RUN", "no answer yet");
  const bool own = alone && OneIn(3);
  const bool faulted = WithFault(first, [&] {
    if (!own) {
      result = core_->Sleep(command);
      return;
    }
    wire::Sleep request;
    request.tags.assign(tags.begin(), tags.end());
    request.level = plan.level;
    for (const auto& [tag, policy] : plan.policies) request.policies.push_back({tag, policy});
    request.force = plan.force;
    WorkerOutcome outcome;
    outcome.worker = first.real->id;
    outcome.status = first.real->session->Sleep(request).status();
    result = std::vector<WorkerOutcome>{outcome};
  });
  Settle(result, selected, fits && !nothing, fits || !alone, reasons, faulted,
         [&](ModelWorker& worker) { ApplySleep(worker, plan, tags); });
}

void ModelFixture::Wake() {
  std::set<std::string> tags = AnyTags();
  ModelWorker& first = AnyWorker();
  std::vector<ModelWorker*> selected = {&first};
  WakeCommand command;
  if (OneIn(5)) {
    tags.clear();
    selected.clear();
    for (ModelWorker& worker : workers_) selected.push_back(&worker);
    command.selector.all = true;
  } else {
    command.selector.workers = {first.name};
    command.selector.tags.assign(tags.begin(), tags.end());
    if (OneIn(4)) command.reservation = AnyReservation();
  }
  if (OneIn(2)) command.order = {"other", "kv_cache"};
  command.deadline = In(seconds(60));

  Bytes need{};
  for (const ModelWorker* const worker : selected) need += NeedsDevice(*worker, tags);
  const bool alone = selected.size() == 1;
  const bool promised = alone && need <= LeftDevice(first.reservation);
  bool must_work = promised || need <= before_.budget.available - FirstAwaited();
  bool may_work = promised || need <= before_.budget.available || !alone;
  std::set<std::string> reasons = {"DEVICE_BUDGET_EXHAUSTED", "NEVER_FITS"};
  if (!command.reservation.empty()) {
    must_work =
        Live(command.reservation) && (need == Bytes(0) || need <= LeftDevice(command.reservation));
    may_work = must_work;
    reasons = kReservationOver;
    reasons.insert("RESERVATION_TOO_SMALL");
  }
  if (!HasAny(first, tags)) {
    must_work = false;
    reasons.insert("NOTHING_SELECTED");
  }
  Result<std::vector<WorkerOutcome>> result = Internal("NOT_RUN", "no answer yet");
  const bool faulted = WithFault(first, [&] { result = core_->WakeUp(command); });
  Settle(result, selected, must_work, may_work, reasons, faulted,
         [&](ModelWorker& worker) { ApplyWake(worker, tags); });
}

ReservationSpec ModelFixture::RandomSpec() {
  ReservationSpec spec;
  spec.name = "part-of-the-model";
  spec.parts = {{"weights", kPage * static_cast<int64_t>(Random(40))},
                {"kv_cache", kPage * static_cast<int64_t>(Random(20))}};
  spec.host = kPage * static_cast<int64_t>(1 + Random(40));
  spec.ttl = seconds(1 + static_cast<int64_t>(Random(120)));
  spec.hold = OneIn(2);
  spec.keep = OneIn(2);
  return spec;
}

void ModelFixture::Made(const ReservationSpec& spec, const ReserveResult& made) {
  EXPECT_EQ(reservations_.count(made.id), 0u);
  reservations_[made.id] = {spec.device(), spec.host, made.expires, spec.keep, 0, false};
}

void ModelFixture::Reserve() {
  const ReservationSpec spec = RandomSpec();
  Result<ReserveResult> made = Internal("NOT_RUN", "no answer yet");
  const bool faulted = WithFault(AnyWorker(), [&] { made = core_->Reserve(spec); });
  const bool fits = FitsBehindAll(spec);
  if (made.ok()) {
    EXPECT_TRUE(fits) << "promised what is not there, or what others wait for";
    EXPECT_EQ(made->expires, clock_.Now() + spec.ttl);
    Made(spec, *made);
  } else if (!faulted) {
    EXPECT_FALSE(fits) << made.status().ToString();
    EXPECT_THAT(made, HasCode(Code::kResourceExhausted));
  }
}

void ModelFixture::Renew() {
  const std::string id = AnyReservation();
  const Duration ttl = seconds(1 + static_cast<int64_t>(Random(120)));
  const auto renewed = core_->Renew(id, ttl);
  EXPECT_EQ(renewed.ok(), Live(id)) << renewed.status().ToString();
  if (renewed.ok()) reservations_.at(id).expires = clock_.Now() + ttl;
}

void ModelFixture::Release() {
  const std::string id = AnyReservation();
  const Bytes left = LeftDevice(id);
  const auto released = core_->Release(id);
  EXPECT_EQ(released.ok(), Live(id)) << released.status().ToString();
  if (!released.ok()) return;
  EXPECT_EQ(released->device, left);
  reservations_.at(id).over = true;
}

void ModelFixture::Reconnect() {
  ModelWorker& worker = AnyWorker();
  Disconnect(worker);
  const std::string reservation = AnyReservation();
  if (OneIn(2) && Live(reservation)) worker.reservation = reservation;
  Connect(worker);
}

void ModelFixture::Expire() { clock_.Advance(seconds(static_cast<int64_t>(Random(50)))); }

}  // namespace torpor
