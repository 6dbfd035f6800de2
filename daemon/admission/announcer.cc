#include "daemon/admission/announcer.h"

#include <charconv>
#include <string>
#include <utility>

namespace torpor {
namespace {

// Memory is low below a twentieth of the device, until it is twice that.
constexpr int64_t kLowPart = 20;
constexpr int64_t kEnough = 2;

// Of "w-7"; none of anything else.
WorkerId IdOf(const std::string& worker) {
  uint64_t number = 0;
  if (worker.rfind("w-", 0) == 0) {
    std::from_chars(worker.data() + 2, worker.data() + worker.size(), number);
  }
  return WorkerId(number);
}

}  // namespace

void Announcer::Reservation(ReservationEvent::Change change, const ReservationStats& stats,
                            Bytes device, Bytes host) {
  if (events_ == nullptr) return;
  events_->Publish(ReservationEvent{change, stats.id, stats.name, device, host});
}

void Announcer::Queue(QueueEvent::Change change, const WaiterStats& waiter, size_t waiting,
                      const Status& status) const {
  if (events_ == nullptr) return;
  QueueEvent event;
  event.change = change;
  event.waiter = waiter.id;
  event.worker = IdOf(waiter.worker);
  (waiter.worker.empty() ? event.name : event.worker_name) = waiter.name;
  event.device = waiter.device;
  event.host = waiter.host;
  event.waiting = static_cast<int64_t>(waiting);
  event.status = status;
  events_->Publish(std::move(event));
}

void Announcer::Entered(const WaiterStats& waiter, size_t waiting) {
  Queue(QueueEvent::Change::kEntered, waiter, waiting, Status::Ok());
}

void Announcer::Granted(const WaiterStats& waiter, size_t waiting) {
  Queue(QueueEvent::Change::kGranted, waiter, waiting, Status::Ok());
}

void Announcer::Left(const WaiterStats& waiter, size_t waiting, const Status& why) const {
  Queue(QueueEvent::Change::kLeft, waiter, waiting, why);
}

void Announcer::Measured(const BudgetStats& budget) {
  if (events_ == nullptr) return;
  const Bytes threshold(budget.total.value() / kLowPart);
  const bool low = budget.available < (low_ ? threshold * kEnough : threshold);
  const bool overcommitted = budget.overcommitted > Bytes(0);
  if (low == low_ && overcommitted == overcommitted_) return;
  low_ = low;
  overcommitted_ = overcommitted;
  events_->Publish(
      PressureEvent{low, overcommitted, budget.available, threshold, budget.overcommitted});
}

}  // namespace torpor
