#ifndef TORPOR_DAEMON_KEEPER_KEEPER_H_
#define TORPOR_DAEMON_KEEPER_KEEPER_H_

#include <string>
#include <variant>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// --- What the journal knows: enough to find the memory of every worker again.

struct SessionOpened {
  WorkerId worker;
  std::string name;
  std::string secret;
};
struct SessionClosed {
  WorkerId worker;
};
enum class JournalState : uint8_t { kResident, kOffloaded, kDiscarded };
struct SegmentRecorded {
  SegmentId segment;
  WorkerId worker;
  std::string tag;
  Bytes offset{};
  Bytes size{};
  JournalState state = JournalState::kResident;
};
struct SegmentFreed {
  SegmentId segment;
};
struct ReservationMade {
  std::string id;
  std::string name;
  Bytes device{};
  Bytes host{};
  TimePoint expires{};  // of the machine's monotonic clock
  bool hold = false;
  bool keep = false;
};
struct ReservationRenewed {
  std::string id;
  TimePoint expires{};
};
struct ReservationReleased {  // or over for another reason than time
  std::string id;
};
using JournalRecord = std::variant<SessionOpened, SessionClosed, SegmentRecorded, SegmentFreed,
                                   ReservationMade, ReservationRenewed, ReservationReleased>;

// Custody of what must outlive the daemon: descriptors of extents, and the journal.
//
// The order of calls is part of the contract, whatever implements it:
//   Allocate, WakeUp: HoldExtent has answered, then the worker maps, then Record says kResident,
//                     then the worker resumes.
//   Sleep:            the copies are done, Record says kOffloaded or kDiscarded, DropExtent has
//                     answered, then the caller is answered.
// Thread-safe. Calls may block for the other side.
class Keeper {
 public:
  virtual ~Keeper() = default;
  // Keeps a duplicate of `fd`.
  virtual Status HoldExtent(ExtentId id, WorkerId worker, Bytes size, int fd) = 0;
  // Closes it. Unknown ids are passed over.
  virtual Status DropExtent(ExtentId id) = 0;
  virtual Status Record(const JournalRecord& record) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_KEEPER_H_
