#ifndef TORPOR_DAEMON_ADMISSION_ANNOUNCER_H_
#define TORPOR_DAEMON_ADMISSION_ANNOUNCER_H_

#include <cstddef>

#include "daemon/admission/reservation.h"
#include "daemon/events/event_log.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// What admission tells the event log; nothing without one. Not thread-safe, except for Left.
class Announcer {
 public:
  explicit Announcer(EventLog* events) : events_(events) {}

  void Reservation(ReservationEvent::Change change, const ReservationStats& stats, Bytes device,
                   Bytes host);
  // `waiting`: how many are in the queue after it.
  void Entered(const WaiterStats& waiter, size_t waiting);
  void Granted(const WaiterStats& waiter, size_t waiting);
  void Left(const WaiterStats& waiter, size_t waiting, const Status& why) const;

  // Tells when pressure begins or ends.
  void Measured(const BudgetStats& budget);

 private:
  void Queue(QueueEvent::Change change, const WaiterStats& waiter, size_t waiting,
             const Status& status) const;

  EventLog* const events_;
  bool low_ = false;
  bool overcommitted_ = false;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_ANNOUNCER_H_
