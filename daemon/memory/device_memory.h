#ifndef TORPOR_DAEMON_MEMORY_DEVICE_MEMORY_H_
#define TORPOR_DAEMON_MEMORY_DEVICE_MEMORY_H_

#include <memory>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/cuda/owners.h"

namespace torpor {

// Creates and releases the daemon's physical memory and counts it, so that a measurement of the
// device's free memory and the counts belong together. No lock is held over a driver call.
// Thread-safe; `driver` must outlive it.
class DeviceMemory {
 public:
  struct Measurement {
    Bytes total{};
    Bytes free{};
    // By this daemon, so far, and of that. Exact if nothing was created or released during the
    // measurement; otherwise `free` may lack more than `created` says and have more than `released`
    // says, never the other way round.
    Bytes created{};
    Bytes released{};
    // By how much `free` may lack more, or have more; 0 if exact.
    Bytes unsettled{};
    Bytes context{};         // the daemon's own context; 0 if unknown
    Bytes resident() const;  // not below 0
    // Total less free, resident and context; not below 0.
    Bytes other() const;
  };

  explicit DeviceMemory(Driver& driver) : driver_(driver) {}

  Driver& driver() { return driver_; }

  // RESOURCE_EXHAUSTED DEVICE_OUT_OF_MEMORY; nothing is left of a failed call.
  Result<std::shared_ptr<PhysicalAllocation>> Create(Bytes size) EXCLUDES(mutex_);
  // Of memory that a daemon before this one has created; `fd` stays the caller's.
  Result<std::shared_ptr<PhysicalAllocation>> Import(int fd, Bytes size) EXCLUDES(mutex_);
  // Drops the allocation, which must have no other owner.
  void Release(std::shared_ptr<PhysicalAllocation> allocation) EXCLUDES(mutex_);

  // kAtOnce tries a few times to find a moment in which nothing is created or released, and waits
  // for nobody. kSettled lets calls under way end and holds new ones back meanwhile, both for at
  // most kPatience: what calls that take longer do stays unsettled.
  enum class Accuracy { kAtOnce, kSettled };
  static constexpr Duration kPatience = milliseconds(200);
  Result<Measurement> Measure(Accuracy accuracy = Accuracy::kAtOnce) EXCLUDES(mutex_);

 private:
  struct Counts {
    Bytes created{};
    Bytes creating{};  // by calls under way
    Bytes released{};
    Bytes releasing{};   // likewise
    int under_way = 0;   // calls of either kind
    uint64_t begun = 0;  // calls so far
  };
  Counts counts() const EXCLUDES(mutex_);
  template <typename How>
  Result<std::shared_ptr<PhysicalAllocation>> Make(Bytes size, How how) EXCLUDES(mutex_);
  // A call begins; waits for settled measurements.
  void Begin() REQUIRES(mutex_);
  void End() REQUIRES(mutex_);
  Result<Measurement> MeasureWithin(int attempts) EXCLUDES(mutex_);

  Driver& driver_;
  mutable Mutex mutex_;
  Counts counts_ GUARDED_BY(mutex_);
  int settling_ GUARDED_BY(mutex_) = 0;  // settled measurements under way
  CondVar idle_;                         // no call is under way
  CondVar settled_;                      // no settled measurement is
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_DEVICE_MEMORY_H_
