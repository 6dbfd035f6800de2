#include "daemon/events/event_log.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

namespace torpor {
namespace {

std::string RandomId() {
  std::random_device random;
  char id[17];
  std::snprintf(id, sizeof id, "%08x%08x", random(), random());
  return id;
}

}  // namespace

EventLog::EventLog(size_t capacity) : capacity_(capacity), boot_id_(RandomId()), ring_(capacity) {}

void EventLog::Publish(EventBody body) {
  auto event = std::make_shared<Event>();
  event->body = std::move(body);
  std::shared_ptr<const Event> dropped;  // ends outside the lock
  MutexLock lock(mutex_);
  event->sequence = ++last_;
  event->time = std::chrono::system_clock::now();
  std::shared_ptr<const Event>& place = ring_[last_ % capacity_];
  dropped = std::exchange(place, std::move(event));
  grown_.NotifyAll();
}

uint64_t EventLog::last() const {
  MutexLock lock(mutex_);
  return last_;
}

EventLog::Batch EventLog::Read(uint64_t position, size_t limit) const {
  Batch batch;
  MutexLock lock(mutex_);
  if (position >= last_) return batch;
  const uint64_t gone = last_ > capacity_ ? last_ - capacity_ : 0;
  if (position < gone) {
    batch.lost = gone - position;
    position = gone;
  }
  const uint64_t end = std::min(last_, position + limit);
  batch.events.reserve(end - position);
  while (position < end) batch.events.push_back(ring_[++position % capacity_]);
  return batch;
}

void EventLog::WaitBehind(uint64_t position, const std::atomic<bool>& stop) {
  MutexLock lock(mutex_);
  while (last_ <= position && !stop) grown_.Wait(mutex_);
}

void EventLog::Wake() {
  MutexLock lock(mutex_);
  grown_.NotifyAll();
}

}  // namespace torpor
