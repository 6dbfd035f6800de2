#include "daemon/admission/wait_queue.h"

#include <algorithm>
#include <utility>

namespace torpor {

const WaiterStats& WaitQueue::Add(Waiter waiter, TimePoint now) {
  waiter.stats.id = "q-" + std::to_string(next_id_++);
  waiter.stats.since = now;
  waiter.first_since = now;
  return waiters_.emplace_back(std::move(waiter)).stats;
}

std::vector<Waiter> WaitQueue::Remove(const std::function<bool(const Waiter&)>& leaves,
                                      TimePoint now) {
  std::vector<Waiter> left;
  const uint64_t first = empty() ? 0 : waiters_.front().ticket;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (leaves(*it)) {
      left.push_back(std::move(*it));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  if (!empty() && waiters_.front().ticket != first) waiters_.front().first_since = now;
  return left;
}

Bytes WaitQueue::device() const {
  Bytes sum{};
  for (const Waiter& waiter : waiters_) sum += waiter.stats.device;
  return sum;
}

Bytes WaitQueue::host() const {
  Bytes sum{};
  for (const Waiter& waiter : waiters_) sum += waiter.stats.host;
  return sum;
}

Bytes WaitQueue::PatientlyAwaited(Duration patience, TimePoint now) const {
  if (empty() || waiters_.front().first_since + patience > now) return Bytes(0);
  return waiters_.front().stats.device;
}

std::optional<TimePoint> WaitQueue::NextDeadline() const {
  std::optional<TimePoint> next;
  for (const Waiter& waiter : waiters_) {
    next = std::min(next.value_or(waiter.stats.deadline), waiter.stats.deadline);
  }
  return next;
}

std::vector<WaiterStats> WaitQueue::Snapshot() const {
  std::vector<WaiterStats> all;
  for (const Waiter& waiter : waiters_) all.push_back(waiter.stats);
  return all;
}

}  // namespace torpor
