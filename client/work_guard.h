#ifndef TORPOR_CLIENT_WORK_GUARD_H_
#define TORPOR_CLIENT_WORK_GUARD_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// Decides when work may be submitted to the device.
//
// The shared side is held by threads that submit (for the submission only, not for the work) and is
// re-entrant per thread. The exclusive side belongs to operations: once one asks for it, threads
// that are not inside wait, those inside may enter again and are waited for. It ends with the
// operation. Beyond operations, a thread that needs a tag waits while that tag is asleep.
//
// Thread-safe. Its mutex is held for moments only and never while anything is called.
class WorkGuard {
 public:
  // Enters the shared side. Blocks while an operation has or wants the exclusive side, or a tag in
  // `tags` (empty: any tag) is asleep.
  //   DEADLINE_EXCEEDED ASLEEP: still so at `deadline`
  //   FAILED_PRECONDITION ASLEEP: this thread is inside already and a tag is asleep; it would keep
  //   out the operation that it waits for
  //   UNAVAILABLE DAEMON_GONE: a tag is asleep, and after Abandon stays so
  //   DATA_LOSS SEGMENTS_LOST: see SetLost
  Status Begin(const std::vector<std::string>& tags, std::optional<TimePoint> deadline);

  // Leaves once. Leaving for good runs, outside the guard, what was deferred by this thread.
  //   FAILED_PRECONDITION WORK_GUARD_NOT_HELD
  Status End();

  bool HeldByThisThread() const;

  // If this thread is inside, keeps `action` until it has left for good, and says so.
  bool Defer(std::function<void()> action);

  // Takes the exclusive side for `operation`, shared among operations; blocks until every thread
  // has left. `cancelled` is asked now and after each Interrupt. When it says yes:
  // ABORTED OPERATION_CANCELLED, and the guard is as if nothing had been asked.
  Status Quiet(OperationId operation, const std::function<bool()>& cancelled);
  void Interrupt();

  // Takes the exclusive side at once, for a moment and for no operation, if no thread is inside.
  bool TryExclude();
  void EndExclude();

  // Ends the exclusive side of `operation`, if it has it.
  void Release(OperationId operation);
  // Replaces the set of tags that are asleep, unless a later one is known. `generation`: of the
  // daemon's life that says so; of two the higher is the later. To be called before Release.
  void SetAsleep(const wire::AsleepTags& asleep, uint64_t generation);
  // For when the daemon has ended: ends the exclusive side of all. `torn`: tags that an operation
  // has unmapped in part; they count as asleep until Mend, whatever SetAsleep says.
  void Disconnect(const std::vector<std::string>& torn);
  void Mend();
  // As Disconnect, for when no daemon comes any more: what is asleep stays so for good.
  void Abandon(const std::vector<std::string>& torn);
  // Replaces the set of tags of which a segment has no daemon that knows it, nor its contents.
  void SetLost(std::set<std::string> tags);

  // As SetAsleep said last.
  std::set<std::string> asleep() const;
  // No operation has the exclusive side and no tag is asleep or torn.
  bool Running() const;

 private:
  struct Holder {
    int depth = 0;
    std::vector<std::function<void()>> deferred;
  };

  bool MayEnter(const std::vector<std::string>& tags) const REQUIRES(mutex_) {
    return quiet_.empty() && exclusions_ == 0 && !NeedsSleepingTag(tags);
  }
  bool NeedsSleepingTag(const std::vector<std::string>& tags) const REQUIRES(mutex_);
  Status Asleep(Code code, const char* message) const REQUIRES(mutex_);
  // OK, or why waiting for what sleeps among `tags` is in vain.
  Status CheckHope(const std::vector<std::string>& tags) const REQUIRES(mutex_);
  std::string AsleepTags() const REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::thread::id, Holder> holders_ GUARDED_BY(mutex_);
  std::set<OperationId> quiet_ GUARDED_BY(mutex_);  // have or want the exclusive side
  int exclusions_ GUARDED_BY(mutex_) = 0;
  std::set<std::string> asleep_ GUARDED_BY(mutex_);
  std::set<std::string> torn_ GUARDED_BY(mutex_);
  std::set<std::string> lost_ GUARDED_BY(mutex_);
  std::pair<uint64_t, uint64_t> asleep_revision_ GUARDED_BY(mutex_);  // after the generation
  bool abandoned_ GUARDED_BY(mutex_) = false;
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_WORK_GUARD_H_
