#ifndef TORPOR_CLIENT_RECLAIMER_H_
#define TORPOR_CLIENT_RECLAIMER_H_

#include <atomic>
#include <string>
#include <vector>

#include "client/arena.h"
#include "client/connection.h"
#include "client/segments.h"
#include "client/work_guard.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// Unmaps what was freed, at a moment when that is allowed, and tells the daemon that waits for it.
// Thread-safe.
class Reclaimer {
 public:
  // What is still mapped here of a segment that was freed.
  struct Leftover {
    Segment segment;
    // As the daemon says. None: what lies in the segment's range and in no other segment.
    std::vector<wire::Extent> extents;
    LinkPtr told;  // whose daemon waits for Freed; nothing: none does, but of what is lost the last
  };

  // All must outlive the reclaimer. `first`: the session's first link.
  Reclaimer(Driver& driver, WorkGuard& guard, ArenaSet& arenas, const Segments& segments,
            LinkPtr first)
      : driver_(driver),
        guard_(guard),
        arenas_(arenas),
        segments_(segments),
        last_link_(std::move(first)) {}

  void Keep(Leftover leftover) EXCLUDES(mutex_);
  // Cheap.
  bool Any() const { return any_; }
  // Unmaps what is left over, once no thread is inside the work guard: a synchronize would break
  // the graph capture that it may be doing. The last one to leave the guard tries again.
  Status Reclaim() EXCLUDES(mutex_);
  // An allocation has ended, which others may have waited for.
  void OnAllocationEnd() EXCLUDES(mutex_);
  // Tells the next daemon what the last one has not heard. By the socket thread.
  void OnWelcome(const LinkPtr& link) EXCLUDES(mutex_);

 private:
  // False: not now.
  bool FindExtents(Leftover& leftover) const;
  // Null: nobody.
  LinkPtr WhoWaits(const Leftover& leftover) EXCLUDES(mutex_);
  Status TellFreed(SegmentId segment, const LinkPtr& told) EXCLUDES(mutex_);

  Driver& driver_;
  WorkGuard& guard_;
  ArenaSet& arenas_;
  const Segments& segments_;

  Mutex mutex_;
  std::vector<Leftover> leftovers_ GUARDED_BY(mutex_);
  std::vector<Leftover> postponed_ GUARDED_BY(mutex_);  // until an allocation has ended
  std::vector<SegmentId> untold_ GUARDED_BY(mutex_);
  LinkPtr last_link_ GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};  // of leftovers_; spares WorkEnd the mutex
  std::atomic<bool> any_postponed_{false};
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_RECLAIMER_H_
