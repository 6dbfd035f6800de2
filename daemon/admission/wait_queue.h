#ifndef TORPOR_DAEMON_ADMISSION_WAIT_QUEUE_H_
#define TORPOR_DAEMON_ADMISSION_WAIT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "daemon/admission/draw.h"
#include "daemon/admission/reservation.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// One that waits for memory; holds none of it meanwhile.
struct Waiter {
  uint64_t ticket = 0;  // its own
  uint64_t place = 0;   // the lowest is the first
  WaiterStats stats;
  ReservationSpec spec;     // unless it is an allocation
  TimePoint first_since{};  // since when nobody is before it
  bool told = false;        // the event log knows that it waits
  // One of the two, called once and without a lock of the admission.
  std::function<void(Result<ReserveResult>)> reserved;
  std::function<void(Result<Draw>)> drawn;
};

// The order of those that wait, first come first. Not thread-safe.
class WaitQueue {
 public:
  using Waiters = std::list<Waiter>;

  bool empty() const { return waiters_.empty(); }
  size_t size() const { return waiters_.size(); }

  // Names the waiter by its place, "q-1", and notes since when it waits unless it says so.
  void Add(Waiter waiter, TimePoint now);
  // Takes out those that `leaves` says, asking the first one first; gives them in their order.
  std::vector<Waiter> Remove(const std::function<bool(Waiter&)>& leaves, TimePoint now);

  // Allocations of this worker; with "", reservations to be.
  size_t CountOf(const std::string& worker) const;
  // What all of them want; of what never fits a part, so that nothing overflows.
  Bytes device() const;
  Bytes host() const;
  // What the first wants, if it has been the first for `patience`.
  Bytes PatientlyAwaited(Duration patience, TimePoint now) const;
  // When the first of their deadlines passes.
  std::optional<TimePoint> NextDeadline() const;

  std::vector<WaiterStats> Snapshot() const;

 private:
  Waiters waiters_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_WAIT_QUEUE_H_
