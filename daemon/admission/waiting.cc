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
  announcer_.Reservation(ReservationEvent::Change::kMade, stats, stats.device, stats.host);
  wake_server_.NotifyAll();  // it waits for the next expiry
  return result;
}

Result<ReserveResult> Admission::Reserve(const ReservationSpec& spec) {
  TORPOR_RETURN_IF_ERROR(CheckSpec(spec));
  ReserveResult result;
  TORPOR_RETURN_IF_ERROR(Admit({spec.device(), spec.host}, Place::kAfterAll,
                               [&](const BudgetStats& budget)
                                   NO_THREAD_SAFETY_ANALYSIS { result = Make(spec, budget); }));
  return result;
}

uint64_t Admission::NewTicket() {
  MutexLock lock(mutex_);
  return next_ticket_++;
}

Status Admission::Enqueue(Waiter& waiter) {
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(stopped_);
  if (queue_.size() >= kMaxWaiters) {
    return ResourceExhausted("QUEUE_FULL", "as many wait for memory as may wait at a time")
        .With("waiting", queue_.size());
  }
  const WaiterStats& entered = queue_.Add(std::move(waiter), clock_.Now());
  announcer_.Entered(entered, queue_.size());
  Changed();
  return Status::Ok();
}

void Admission::ReserveAsync(uint64_t ticket, const ReservationSpec& spec, TimePoint deadline,
                             std::function<void(Result<ReserveResult>)> done) {
  Result<ReserveResult> now = Reserve(spec);
  const bool short_of_memory = !now.ok() && (now.status().reason() == "DEVICE_BUDGET_EXHAUSTED" ||
                                             now.status().reason() == "HOST_POOL_EXHAUSTED");
  if (!short_of_memory) return done(std::move(now));
  Waiter waiter;
  waiter.ticket = ticket;
  waiter.spec = spec;
  waiter.stats.name = spec.name;
  waiter.stats.parts = spec.parts;
  waiter.stats.device = spec.device();
  waiter.stats.host = spec.host;
  waiter.stats.deadline = deadline;
  waiter.reserved = done;
  if (const Status queued = Enqueue(waiter); !queued.ok()) done(queued);
}

void Admission::DrawDeviceAsync(uint64_t ticket, Bytes size, const Allocator& worker,
                                TimePoint deadline, std::function<void(Result<Draw>)> done) {
  Waiter waiter;
  waiter.ticket = ticket;
  waiter.stats.name = worker.name;
  waiter.stats.worker = worker.id;
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
    for (const Waiter& waiter : ended) announcer_.Left(waiter.stats, queue_.size(), why);
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

std::function<void()> Admission::Grant(Waiter waiter, const BudgetStats& budget) {
  announcer_.Granted(waiter.stats, queue_.size() - 1);
  if (waiter.reserved != nullptr) {
    return [reserved = std::move(waiter.reserved), result = Make(waiter.spec, budget)] {
      reserved(result);
    };
  }
  return
      [drawn = std::move(waiter.drawn),
       draw = std::make_shared<Draw>(MakeDraw(waiter.stats.device))] { drawn(std::move(*draw)); };
}

void Admission::ServeOnce() {
  const Result<DeviceMemory::Measurement> measurement = measure_(Accuracy::kAtOnce);
  std::vector<std::function<void()>> answers;
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_.Now();
    Need kept;  // for those before
    const auto serve = [&](const Waiter& waiter) NO_THREAD_SAFETY_ANALYSIS {
      const Need need{waiter.stats.device, waiter.stats.host};
      const bool late = waiter.stats.deadline <= now;
      if (!measurement.ok()) {
        if (late) {
          const Status why = Late(measurement.status(), waiter.stats, now);
          announcer_.Left(waiter.stats, queue_.size() - 1, why);
          answers.emplace_back([waiter, why] { Answer(waiter, why); });
        }
        return late;
      }
      const Shortage shortage = Compare(need, kept, *measurement);
      if (shortage.fits()) {
        answers.push_back(Grant(waiter, shortage.budget));
        return true;
      }
      if (late || !shortage.EverFits()) {
        answers.emplace_back([this, waiter, now, late, shortage, waiting = queue_.size() - 1,
                              announcer = announcer_] {
          const Status refusal = Refuse(shortage);
          const Status why = late ? Late(refusal, waiter.stats, now) : refusal;
          announcer.Left(waiter.stats, waiting, why);
          Answer(waiter, why);
        });
        return true;
      }
      kept.device += need.device;
      kept.host += need.host;
      return false;
    };
    queue_.Remove(serve, now);
  }
  for (const auto& answer : answers) answer();
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
