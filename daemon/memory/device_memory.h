#ifndef TORPOR_DAEMON_MEMORY_DEVICE_MEMORY_H_
#define TORPOR_DAEMON_MEMORY_DEVICE_MEMORY_H_

#include <memory>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/cuda/owners.h"

namespace torpor {

// Creates and releases the daemon's physical memory and counts it, so that a measurement of the
// device's free memory and the counts always belong together. Thread-safe; `driver` must outlive
// it.
class DeviceMemory {
 public:
  struct Measurement {
    Bytes total{};
    Bytes free{};
    Bytes created{};   // by this daemon, so far
    Bytes released{};  // of that
    Bytes context{};   // the daemon's own context; 0 if unknown
    Bytes resident() const { return created - released; }
    // Total less free, resident and context; not below 0.
    Bytes other() const;
  };

  explicit DeviceMemory(Driver& driver) : driver_(driver) {}

  Driver& driver() { return driver_; }

  // RESOURCE_EXHAUSTED DEVICE_OUT_OF_MEMORY; nothing is left of a failed call.
  Result<std::shared_ptr<PhysicalAllocation>> Create(Bytes size) EXCLUDES(gate_);
  // Drops the allocation, which must have no other owner.
  void Release(std::shared_ptr<PhysicalAllocation> allocation) EXCLUDES(gate_);

  // Waits for a Create or Release that is under way.
  Result<Measurement> Measure() EXCLUDES(gate_);

 private:
  Driver& driver_;
  SharedMutex gate_;  // shared: one driver call and its count; exclusive: a measurement
  Mutex count_mutex_;
  Bytes created_ GUARDED_BY(count_mutex_){};
  Bytes released_ GUARDED_BY(count_mutex_){};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_DEVICE_MEMORY_H_
