#ifndef TORPOR_LIB_BASE_CLOCK_H_
#define TORPOR_LIB_BASE_CLOCK_H_

#include <chrono>

#include "lib/base/mutex.h"

namespace torpor {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Monotonic time, injected so that a test decides when something expires. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;

  static const Clock& Real();
};

// Time that moves only when told. Thread-safe.
class ManualClock : public Clock {
 public:
  TimePoint Now() const override {
    MutexLock lock(mutex_);
    return now_;
  }
  void Advance(Duration by) {
    MutexLock lock(mutex_);
    now_ += by;
  }

 private:
  mutable Mutex mutex_;
  TimePoint now_ GUARDED_BY(mutex_) = TimePoint() + std::chrono::hours(1);
};

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_CLOCK_H_
