#ifndef TORPOR_DAEMON_EVENTS_EVENT_H_
#define TORPOR_DAEMON_EVENTS_EVENT_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// What happens in a daemon and others may want to know, as plain values. Each says what has become
// true already. An id of 0 is none.

struct SessionEvent {
  // kReturned: to a daemon that was started again.
  enum class Change { kOpened, kClosed, kReturned };
  Change change = Change::kOpened;
  WorkerId worker;
  std::string worker_name;
  pid_t pid = 0;
  Status why;  // closed: how the connection ended
};

enum class OperationKind { kSleep, kWakeUp };

// Where the time went; phases overlap.
struct PhaseTimes {
  Duration total{};
  Duration quiesce{};
  Duration digest{};  // of what may be unchanged
  Duration copy{};
  Duration worker{};   // the worker's unmapping or mapping, as far as it was waited for
  Duration handles{};  // creating, mapping and releasing in the daemon
};

struct OperationEvent {
  // kEnded is the answer to the caller, exactly one for each kStarted; kRolledBack is the end of
  // what a failed operation left to undo, before or after that.
  enum class Change { kStarted, kCommitted, kEnded, kRolledBack };
  Change change = Change::kStarted;
  OperationKind kind = OperationKind::kSleep;
  OperationId operation;
  WorkerId worker;
  std::string worker_name;
  Status status;  // ended: the outcome
  // Started: what it is about to do; committed and ended: what it did.
  int64_t segments = 0;
  Bytes device{};
  Bytes copied{};
  Bytes unchanged{};  // offloaded by a sleep without a copy
  Bytes discarded{};
  PhaseTimes times;  // ended
  bool rollback_pending = false;
};

struct ProgressEvent {
  // As PhaseTimes has them.
  enum class Phase { kQuiesce, kCopy, kWorker, kHandles };
  Phase phase = Phase::kQuiesce;
  OperationKind kind = OperationKind::kSleep;
  OperationId operation;
  WorkerId worker;
  std::string worker_name;
  std::string tag;  // whose bytes are copied; empty in other phases
  Bytes done{};     // copied and cleared so far, in all tags
  Bytes total{};
};

// Segments of one worker and tag that went from one rest state to another in one operation.
struct SegmentsEvent {
  enum class State { kResident, kOffloaded, kDiscarded };
  OperationId operation;
  WorkerId worker;
  std::string worker_name;
  std::string tag;
  State from = State::kResident;
  State to = State::kResident;
  int64_t segments = 0;
  Bytes size{};
};

struct ReservationEvent {
  // kDrawnOut: nothing of its device bytes is left to draw. kEnded: with its last worker's session.
  enum class Change { kMade, kRenewed, kDrawnOut, kReleased, kExpired, kEnded };
  Change change = Change::kMade;
  std::string id;
  std::string name;
  // Made and renewed: what is promised; at the end of any kind: the promises that came free.
  Bytes device{};
  Bytes host{};
};

// Somebody who waits for memory.
struct QueueEvent {
  enum class Change { kEntered, kGranted, kLeft };
  Change change = Change::kEntered;
  std::string waiter;  // its id in the queue, or what it is called in Usage
  std::string name;    // of the reservation, or what else it is for
  WorkerId worker;     // who waits, where it is a worker
  std::string worker_name;
  Bytes device{};  // wanted
  Bytes host{};
  int64_t waiting = 0;  // how many are in the queue after this
  Status status;        // left without a grant: why
};

// A measurement found one of the two conditions begun or ended.
struct PressureEvent {
  bool low = false;            // available device memory is below the threshold
  bool overcommitted = false;  // promises exceed what is there
  Bytes available{};
  Bytes threshold{};
  Bytes overcommitted_by{};
};

using EventBody = std::variant<SessionEvent, OperationEvent, ProgressEvent, SegmentsEvent,
                               ReservationEvent, QueueEvent, PressureEvent>;

struct Event {
  uint64_t sequence = 0;  // from 1, without gaps
  std::chrono::system_clock::time_point time;
  EventBody body;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_EVENTS_EVENT_H_
