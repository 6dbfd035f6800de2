#include "daemon/operation/shared_runs.h"

#include "daemon/operation/steps.h"

namespace torpor {

WorkerOutcome SharedRuns::Do(WorkerId worker, const std::string& wish, TimePoint deadline,
                             const CancelToken* cancel, const Run& run) {
  const Key key(worker, wish);
  for (;;) {
    std::shared_ptr<Shared> shared;
    bool leads = false;
    {
      MutexLock lock(mutex_);
      std::shared_ptr<Shared>& running = running_[key];
      leads = running == nullptr;
      if (leads) {
        running = std::make_shared<Shared>(deadline);
      } else {
        ++running->callers;
      }
      shared = running;
    }
    if (leads) return Lead(key, shared, cancel, run);
    const std::optional<WorkerOutcome> outcome = Join(worker, *shared, deadline, cancel);
    if (outcome.has_value()) return *outcome;
  }
}

void SharedRuns::Close(WorkerId worker) {
  MutexLock lock(mutex_);
  auto it = running_.lower_bound({worker, ""});
  while (it != running_.end() && it->first.first == worker) it = running_.erase(it);
}

WorkerOutcome SharedRuns::Lead(const Key& key, const std::shared_ptr<Shared>& shared,
                               const CancelToken* cancel, const Run& run) {
  WorkerOutcome outcome;
  {
    const CancelToken::Callback leave(cancel, [&] { Leave(*shared, cancel->status()); });
    outcome = run(shared->token);
  }
  MutexLock lock(mutex_);
  const auto running = running_.find(key);
  if (running != running_.end() && running->second == shared) running_.erase(running);
  shared->outcome = outcome;
  ended_.NotifyAll();
  return outcome;
}

std::optional<WorkerOutcome> SharedRuns::Join(WorkerId worker, Shared& shared, TimePoint deadline,
                                              const CancelToken* cancel) {
  const CancelToken::Callback wake(cancel, [this] {
    MutexLock lock(mutex_);
    ended_.NotifyAll();
  });
  WorkerOutcome left;
  left.worker = worker;
  {
    MutexLock lock(mutex_);
    while (!shared.outcome.has_value()) {
      left.status = CheckWanted(deadline, cancel);
      if (!left.status.ok()) break;
      ended_.WaitUntil(mutex_, deadline);
    }
    if (shared.outcome.has_value()) {
      const Code code = shared.outcome->status.code();
      const bool late = std::chrono::steady_clock::now() >= shared.deadline;
      if (code == Code::kCancelled || (code == Code::kDeadlineExceeded && late))
        return std::nullopt;
      return shared.outcome;
    }
  }
  Leave(shared, left.status);
  return left;
}

void SharedRuns::Leave(Shared& shared, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (--shared.callers > 0) return;
  }
  shared.token.Cancel(why);
}

}  // namespace torpor
