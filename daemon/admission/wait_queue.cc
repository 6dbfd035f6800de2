#include "daemon/admission/wait_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace torpor {

void WaitQueue::Add(Waiter waiter, TimePoint now) {
  waiter.stats.id = "q-" + std::to_string(waiter.place);
  if (waiter.stats.since == TimePoint()) waiter.stats.since = now;
  waiter.first_since = now;
  auto behind = waiters_.end();
  while (behind != waiters_.begin() && std::prev(behind)->place > waiter.place) --behind;
  waiters_.insert(behind, std::move(waiter));
}

std::vector<Waiter> WaitQueue::Remove(const std::function<bool(Waiter&)>& leaves, TimePoint now) {
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

size_t WaitQueue::CountOf(const std::string& worker) const {
  return static_cast<size_t>(
      std::count_if(waiters_.begin(), waiters_.end(),
                    [&](const Waiter& waiter) { return waiter.stats.worker == worker; }));
}

Bytes WaitQueue::device() const {
  Bytes sum{};
  for (const Waiter& waiter : waiters_) sum += std::min(waiter.stats.device, kAbsurd);
  return sum;
}

Bytes WaitQueue::host() const {
  Bytes sum{};
  for (const Waiter& waiter : waiters_) sum += std::min(waiter.stats.host, kAbsurd);
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
