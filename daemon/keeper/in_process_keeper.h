#ifndef TORPOR_DAEMON_KEEPER_IN_PROCESS_KEEPER_H_
#define TORPOR_DAEMON_KEEPER_IN_PROCESS_KEEPER_H_

#include <map>
#include <vector>

#include "daemon/keeper/keeper.h"
#include "lib/base/mutex.h"
#include "lib/base/unique_fd.h"

namespace torpor {

// Keeps everything in the daemon itself: the same order of steps, and nothing survives the daemon.
class InProcessKeeper final : public Keeper {
 public:
  Status HoldExtent(ExtentId id, WorkerId worker, Bytes size, int fd) override EXCLUDES(mutex_);
  Status DropExtent(ExtentId id) override EXCLUDES(mutex_);
  Status Record(const JournalRecord& record) override EXCLUDES(mutex_);

  size_t extents() const EXCLUDES(mutex_);
  // The segments of the journal, as the last record of each says.
  std::vector<SegmentRecorded> segments() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<ExtentId, UniqueFd> extents_ GUARDED_BY(mutex_);
  std::map<SegmentId, SegmentRecorded> segments_ GUARDED_BY(mutex_);
  std::map<WorkerId, SessionOpened> sessions_ GUARDED_BY(mutex_);
  std::map<std::string, ReservationMade> reservations_ GUARDED_BY(mutex_);
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_IN_PROCESS_KEEPER_H_
