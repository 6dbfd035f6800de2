// Admission of reservations, and of those that wait.

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/admission/admission.h"

namespace torpor {
namespace {

// How often the device is measured for those that wait: memory of other processes, and of workers
// that die, comes free without notice.
constexpr Duration kRound = milliseconds(50);
constexpr Duration kShortestRound = milliseconds(1);

// The same numbers, another verdict.
Status Late(const Status& refusal, const WaiterStats& waiter, TimePoint now) {
  const bool allocation = !waiter.worker.empty();
  const int64_t waited = std::chrono::duration_cast<milliseconds>(now - waiter.since).count();
  Status late = DeadlineExceeded(allocation ? "ALLOCATION_DEADLINE" : "RESERVATION_DEADLINE",
                                 waiter.name + " waited " + std::to_string(waited) + " ms as " +
                                     waiter.id + ": " + refusal.message());
  for (const auto& [key, value] : refusal.details()) late.Add(key, value);
  late.Add("waited_ms", std::to_string(waited));
  return late;
}

void Answer(const Waiter& waiter, const Status& error) {
  if (waiter.reserved != nullptr) {
    waiter.reserved(error);
  } else {
    waiter.drawn(error);
  }
}

}  // namespace

ReserveResult Admission::Make(const ReservationSpec& spec, const BudgetStats& budget) {
  ForgetOld();
  ReserveResult result;
  result.id = "r-" + std::to_string(next_reservation_++);
  result.expires = clock_.Now() + spec.ttl;
  result.budget = budget;
  ReservationStats& stats = reservations_[result.id].stats;
  stats.id = result.id;
  stats.name = spec.name;
  stats.parts = spec.parts;
  stats.device = spec.device();
  stats.host = spec.host;
  stats.expires = result.expires;
  stats.hold = spec.hold;
  stats.keep = spec.keep;
  stats.owner = spec.owner;
  announcer_.Reservation(ReservationEvent::Change::kMade, stats, stats.device, stats.host);
  wake_server_.NotifyAll();  // it waits for the next expiry
  return result;
}

Status Admission::CheckCount() const {
  const TimePoint now = clock_.Now();
  const auto live = static_cast<size_t>(
      std::count_if(reservations_.begin(), reservations_.end(),
                    [now](const auto& entry) { return !entry.second.Over(now); }));
  const size_t waiting = queue_.CountOf("");
  if (live + waiting < kMaxReservations) return Status::Ok();
  return ResourceExhausted("TOO_MANY_RESERVATIONS",
                           std::to_string(live) + " reservations are live and " +
                               std::to_string(waiting) + " waited for, of at most " +
                               std::to_string(kMaxReservations))
      .With("reservations", live)
      .With("waiting", waiting)
      .With("limit", kMaxReservations);
}

Result<ReserveResult> Admission::Reserve(const ReservationSpec& spec) {
  TORPOR_RETURN_IF_ERROR(CheckSpec(spec));
  ReserveResult result;
  TORPOR_RETURN_IF_ERROR(Admit({spec.device(), spec.host}, Place::kAfterAll,
                               [&](const BudgetStats& budget) NO_THREAD_SAFETY_ANALYSIS -> Status {
                                 TORPOR_RETURN_IF_ERROR(CheckCount());
                                 result = Make(spec, budget);
                                 return Status::Ok();
                               }));
  return result;
}

uint64_t Admission::NewTicket() {
  MutexLock lock(mutex_);
  return next_ticket_++;
}

Status Admission::Enqueue(Waiter& waiter) {
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(stopped_);
  const std::string& worker = waiter.stats.worker;
  if (worker.empty()) TORPOR_RETURN_IF_ERROR(CheckCount());
  const size_t own = worker.empty() ? 0 : queue_.CountOf(worker);
  if (own >= kMaxWaitersOfWorker) {
    return ResourceExhausted("QUEUE_FULL", "worker " + worker + " (" + waiter.stats.name +
                                               ") waits for as many allocations as one may")
        .With("worker", worker)
        .With("waiting", own)
        .With("limit", kMaxWaitersOfWorker);
  }
  if (queue_.size() >= kMaxWaiters) {
    return ResourceExhausted("QUEUE_FULL", "as many wait for memory as may wait at a time")
        .With("waiting", queue_.size())
        .With("limit", kMaxWaiters);
  }
  queue_.Add(std::move(waiter), clock_.Now());
  Changed();
  return Status::Ok();
}

void Admission::ReserveAsync(uint64_t ticket, const ReservationSpec& spec, TimePoint deadline,
                             const std::function<void(Result<ReserveResult>)>& done,
                             std::optional<uint64_t> place) {
  Waiter waiter;
  waiter.ticket = ticket;
  waiter.place = place.value_or(ticket);
  waiter.spec = spec;
  waiter.stats.owner = spec.owner;
  waiter.stats.name = spec.name;
  waiter.stats.parts = spec.parts;
  waiter.stats.device = spec.device();
  waiter.stats.host = spec.host;
  waiter.stats.deadline = deadline;
  waiter.reserved = done;
  Status queued = CheckSpec(spec);
  if (queued.ok()) queued = Enqueue(waiter);
  if (!queued.ok()) done(queued);
}

void Admission::DrawDeviceAsync(uint64_t ticket, Bytes size, const Allocator& worker,
                                TimePoint deadline, const std::function<void(Result<Draw>)>& done) {
  Waiter waiter;
  waiter.ticket = ticket;
  waiter.place = worker.place.value_or(ticket);
  waiter.stats.name = worker.name;
  waiter.stats.worker = worker.id;
  waiter.stats.since = worker.since;
  waiter.stats.device = size;
  waiter.stats.deadline = deadline;
  waiter.drawn = done;
  if (const Status queued = Enqueue(waiter); !queued.ok()) done(queued);
}

void Admission::EndWaits(const std::function<bool(const Waiter&)>& which, const Status& why) {
  std::vector<Waiter> ended;
  {
    MutexLock lock(mutex_);
    ended = queue_.Remove(which, clock_.Now());
    for (const Waiter& waiter : ended) {
      if (waiter.told) announcer_.Left(waiter.stats, --told_, why);
    }
    if (!ended.empty()) Changed();
  }
  for (const Waiter& waiter : ended) Answer(waiter, why);
}

void Admission::CancelWait(uint64_t ticket, const Status& why) {
  EndWaits([&](const Waiter& waiter) { return waiter.ticket == ticket; }, why);
}

void Admission::CancelWaitsOf(const std::string& worker, const Status& why) {
  EndWaits([&](const Waiter& waiter) { return waiter.stats.worker == worker; }, why);
}

void Admission::StopWaiting(const Status& why) {
  {
    MutexLock lock(mutex_);
    stopped_ = why;
    wake_server_.NotifyAll();
  }
  EndWaits([](const Waiter&) { return true; }, why);
}

std::function<void()> Admission::Grant(Waiter& waiter, const BudgetStats& budget) {
  if (waiter.reserved != nullptr) {
    return [reserved = std::move(waiter.reserved), result = Make(waiter.spec, budget)] {
      reserved(result);
    };
  }
  return
      [drawn = std::move(waiter.drawn),
       draw = std::make_shared<Draw>(MakeDraw(waiter.stats.device))] { drawn(std::move(*draw)); };
}

bool Admission::Judge(Waiter& waiter, const Result<DeviceMemory::Measurement>& measurement,
                      TimePoint now, Funds& funds, Need& kept, Verdict& verdict) {
  const Need need{waiter.stats.device, waiter.stats.host};
  verdict.late = waiter.stats.deadline <= now;
  verdict.failed = measurement.status();
  bool ever_fits = true;
  if (measurement.ok()) {
    verdict.shortage = Compare(need, kept, funds);
    if (verdict.shortage.fits()) {
      verdict.granted = funds.budget;
      // As Arithmetic would have it now.
      (waiter.reserved != nullptr ? funds.budget.promised : funds.budget.pending) += need.device;
      if (need.device > Bytes(0)) funds.budget.available -= need.device;
      funds.host_promised += need.host;
      return true;
    }
    ever_fits = verdict.shortage.EverFits();
  }
  if (ever_fits && !waiter.told) {
    waiter.told = true;
    announcer_.Entered(waiter.stats, ++told_);
  }
  if (!ever_fits) return true;
  // Of one that is late as well: another caller may want to go on in its place.
  kept.device += need.device;
  kept.host += need.host;
  return verdict.late;
}

void Admission::ServeOnce() {
  const Result<DeviceMemory::Measurement> measurement = measure_(Accuracy::kAtOnce);
  std::vector<Waiter> served;
  std::vector<Verdict> verdicts;
  std::vector<std::function<void()>> grants;  // null: refused
  TimePoint now;
  {
    MutexLock lock(mutex_);
    now = clock_.Now();
    Funds funds = measurement.ok() ? Count(*measurement) : Funds();
    Need kept;  // for those before
    const auto leaves = [&](Waiter& waiter) NO_THREAD_SAFETY_ANALYSIS {
      Verdict verdict;
      if (!Judge(waiter, measurement, now, funds, kept, verdict)) return false;
      if (waiter.told) --told_;
      verdict.waiting = told_;
      verdicts.push_back(std::move(verdict));
      return true;
    };
    served = queue_.Remove(leaves, now);
    bool refused = false;
    for (size_t i = 0; i < served.size(); ++i) {
      grants.emplace_back();
      if (verdicts[i].granted.has_value()) {
        if (served[i].told) announcer_.Granted(served[i].stats, verdicts[i].waiting);
        grants[i] = Grant(served[i], *verdicts[i].granted);
      } else {
        refused = true;
      }
    }
    if (refused) {
      Changed();  // what was kept for them is there for those behind
      const LargestHolders promises = LargestPromises();
      for (Verdict& verdict : verdicts) verdict.shortage.promises = promises;
    } else if (!served.empty()) {
      announcer_.Measured(funds.budget);
    }
  }
  const Announcer announcer(options_.events);
  std::optional<std::vector<MemoryHolder>> workers;
  for (size_t i = 0; i < served.size(); ++i) {
    const Waiter& waiter = served[i];
    const Verdict& verdict = verdicts[i];
    if (grants[i] != nullptr) {
      grants[i]();
      continue;
    }
    Status why = verdict.failed;
    if (why.ok()) {
      if (!workers.has_value()) workers = Workers();
      why = Refusal(verdict.shortage, *workers);
    }
    if (verdict.late) why = Late(why, waiter.stats, now);
    if (waiter.told) announcer.Left(waiter.stats, verdict.waiting, why);
    Answer(waiter, why);
  }
}

void Admission::ServeQueue() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      const auto real_now = [] { return Clock::Real().Now(); };
      const TimePoint started = real_now();
      for (;;) {
        if (!stopped_.ok()) return;
        const std::optional<TimePoint> expiry = TellExpired();
        if (queue_.empty()) {
          if (expiry.has_value()) {
            wake_server_.WaitUntil(mutex_, real_now() + (*expiry - clock_.Now()));
          } else {
            wake_server_.Wait(mutex_);
          }
          continue;
        }
        const Duration left = std::min(kRound, *queue_.NextDeadline() - clock_.Now());
        const TimePoint next = started + (changed_ ? kShortestRound : left);
        if (real_now() >= next) break;
        wake_server_.WaitUntil(mutex_, next);
      }
      changed_ = false;
    }
    ServeOnce();
  }
}

void Admission::Changed() {
  if (queue_.empty()) return;
  changed_ = true;
  wake_server_.NotifyAll();
}

std::vector<WaiterStats> Admission::Queue() const {
  MutexLock lock(mutex_);
  return queue_.Snapshot();
}

}  // namespace torpor
