#ifndef TORPOR_DAEMON_KEEPER_KEEPER_H_
#define TORPOR_DAEMON_KEEPER_KEEPER_H_

#include <vector>

#include "daemon/keeper/record.h"
#include "lib/base/status.h"

namespace torpor {

// Custody of what must outlive the daemon: descriptors of extents and of the pool, and the journal.
//
// The order of calls is part of the contract, whatever implements it:
//   Allocate, WakeUp: HoldExtent has answered, then the worker maps, then Record says kResident,
//                     then the worker resumes.
//   Sleep:            the copies are done, Record says kOffloaded (with the image) or kDiscarded,
//                     DropExtent has answered, then the caller is answered.
// Thread-safe. Calls may block for the other side.
class Keeper {
 public:
  virtual ~Keeper() = default;
  // Keeps a duplicate of `fd`.
  virtual Status HoldExtent(const ExtentHeld& extent, int fd) = 0;
  // Closes it. Unknown ids are passed over.
  virtual Status DropExtent(ExtentId id) = 0;
  // All of them or none. Ends (IsEnd) alone are never refused for lack of room.
  virtual Status Record(const std::vector<JournalRecord>& records) = 0;
  // Keeps a duplicate of `fd`, in place of the pool before, and records it.
  virtual Status HoldPool(const PoolHeld& pool, int fd) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_KEEPER_H_
