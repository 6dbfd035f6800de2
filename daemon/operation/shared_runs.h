#ifndef TORPOR_DAEMON_OPERATION_SHARED_RUNS_H_
#define TORPOR_DAEMON_OPERATION_SHARED_RUNS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/operation/operation.h"
#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace torpor {

// Operations under way, for callers that want the same of the same worker: the first one runs it,
// the others wait and get its outcome. Who wants something else of the worker is not held up here
// (and finds it under another's operation). Thread-safe.
class SharedRuns {
 public:
  using Run = std::function<WorkerOutcome(const CancelToken& cancel)>;

  // Blocks. `wish`: equal for operations that would do the same. The token that `run` gets is
  // cancelled when none of its callers is left; `deadline` and `cancel` (may be null) end a shared
  // run only for their own caller, with DEADLINE_EXCEEDED OPERATION_DEADLINE or the token's status.
  // When the run that was waited for ended because its first caller gave up, runs it again, and
  // waits for its roll back before. `again`: that happened to an earlier run of the same call.
  WorkerOutcome Do(WorkerId worker, const std::string& wish, TimePoint deadline,
                   const CancelToken* cancel, const Run& run, bool again = false) EXCLUDES(mutex_);

  // The worker's operation is about to end, so that others may change what it did: nobody joins it
  // any more.
  void Close(WorkerId worker) EXCLUDES(mutex_);
  // A worker's operation, or its roll back, has ended: another one can begin.
  void Ended() EXCLUDES(mutex_);

 private:
  using Key = std::pair<WorkerId, std::string>;
  struct Shared {
    Shared(TimePoint until, uint64_t ended) : deadline(until), ended_before(ended) {}
    const TimePoint deadline;  // of the caller that runs it
    const uint64_t ended_before;
    CancelToken token;
    int callers = 1;
    std::optional<WorkerOutcome> outcome;
    bool given_up = false;  // the outcome is that of its caller's deadline or cancellation
  };

  WorkerOutcome Lead(const Key& key, const std::shared_ptr<Shared>& shared,
                     const CancelToken* cancel, const Run& run) EXCLUDES(mutex_);
  // Nothing where the leader gave up.
  std::optional<WorkerOutcome> Join(WorkerId worker, Shared& shared, TimePoint deadline,
                                    const CancelToken* cancel) EXCLUDES(mutex_);
  void Leave(Shared& shared, const Status& why) EXCLUDES(mutex_);
  // Until more operations have ended than `before`. The caller's deadline or cancellation
  // otherwise.
  Status WaitForEnd(uint64_t before, TimePoint deadline, const CancelToken* cancel)
      EXCLUDES(mutex_);

  Mutex mutex_;  // guards the insides of Shared, too
  CondVar changed_;
  std::map<Key, std::shared_ptr<Shared>> running_ GUARDED_BY(mutex_);  // that can be joined
  uint64_t ended_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_SHARED_RUNS_H_
