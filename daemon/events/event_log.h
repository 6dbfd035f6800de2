#ifndef TORPOR_DAEMON_EVENTS_EVENT_LOG_H_
#define TORPOR_DAEMON_EVENTS_EVENT_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/events/event.h"
#include "lib/base/mutex.h"

namespace torpor {

// The last `capacity` events of this daemon, numbered from 1. The ring is the only buffer there is:
// a reader has a position of its own, and one that is too slow finds that events are gone.
// Thread-safe; its lock is held for nothing but moving pointers, so Publish may be called anywhere,
// under other locks too.
class EventLog {
 public:
  static constexpr size_t kCapacity = 16384;

  explicit EventLog(size_t capacity = kCapacity);
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Tells this start of a daemon from every other.
  const std::string& boot_id() const { return boot_id_; }

  void Publish(EventBody body) EXCLUDES(mutex_);

  // The newest event's number; 0 before the first.
  uint64_t last() const EXCLUDES(mutex_);

  struct Batch {
    uint64_t lost = 0;  // events right behind the position that are gone
    std::vector<std::shared_ptr<const Event>> events;
  };
  // Up to `limit` events behind `position`, or behind those that are gone.
  Batch Read(uint64_t position, size_t limit) const EXCLUDES(mutex_);

  // Until there is an event behind `position`, or `stop` is set, which Wake makes it see.
  void WaitBehind(uint64_t position, const std::atomic<bool>& stop) EXCLUDES(mutex_);
  void Wake() EXCLUDES(mutex_);

 private:
  const size_t capacity_;
  const std::string boot_id_;
  mutable Mutex mutex_;
  CondVar grown_;
  // The event with number n is at n % capacity.
  std::vector<std::shared_ptr<const Event>> ring_ GUARDED_BY(mutex_);
  uint64_t last_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_EVENTS_EVENT_LOG_H_
