#ifndef TORPOR_DAEMON_KEEPER_IN_PROCESS_KEEPER_H_
#define TORPOR_DAEMON_KEEPER_IN_PROCESS_KEEPER_H_

#include <map>
#include <vector>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/ledger.h"
#include "lib/base/mutex.h"
#include "lib/base/unique_fd.h"

namespace torpor {

// Keeps everything in the daemon itself: the same order of steps and the same refusals, and nothing
// survives the daemon.
class InProcessKeeper final : public Keeper {
 public:
  Status HoldExtent(const ExtentHeld& extent, int fd) override EXCLUDES(mutex_);
  Status DropExtent(ExtentId id) override EXCLUDES(mutex_);
  Status Record(const std::vector<JournalRecord>& records) override EXCLUDES(mutex_);
  Status HoldPool(const PoolHeld& pool, int fd) override EXCLUDES(mutex_);

  Ledger ledger() const EXCLUDES(mutex_);
  // How many descriptors of extents are held.
  size_t extents() const EXCLUDES(mutex_);
  // The segments of the journal, as the last record of each says.
  std::vector<SegmentRecorded> segments() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  Ledger ledger_ GUARDED_BY(mutex_);
  std::map<ExtentId, UniqueFd> extents_ GUARDED_BY(mutex_);
  UniqueFd pool_ GUARDED_BY(mutex_);
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_IN_PROCESS_KEEPER_H_
