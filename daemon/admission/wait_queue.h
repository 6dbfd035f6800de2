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
  uint64_t ticket = 0;
  WaiterStats stats;
  ReservationSpec spec;     // unless it is an allocation
  TimePoint first_since{};  // since when nobody is before it
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

  // Names the waiter ("q-1") and puts it at the end.
  const WaiterStats& Add(Waiter waiter, TimePoint now);
  // Takes out those that `leaves` says.
  std::vector<Waiter> Remove(const std::function<bool(const Waiter&)>& leaves, TimePoint now);

  // What all of them want.
  Bytes device() const;
  Bytes host() const;
  // What the first wants, if it has been the first for `patience`.
  Bytes PatientlyAwaited(Duration patience, TimePoint now) const;
  // When the first of their deadlines passes.
  std::optional<TimePoint> NextDeadline() const;

  std::vector<WaiterStats> Snapshot() const;

 private:
  Waiters waiters_;
  uint64_t next_id_ = 1;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_WAIT_QUEUE_H_
