#include "daemon/operation/shared_runs.h"

#include "daemon/operation/steps.h"

namespace torpor {

WorkerOutcome SharedRuns::Do(WorkerId worker, const std::string& wish, TimePoint deadline,
                             const CancelToken* cancel, const Run& run, bool again) {
  const Key key(worker, wish);
  for (;;) {
    std::shared_ptr<Shared> shared;
    bool leads = false;
    {
      MutexLock lock(mutex_);
      std::shared_ptr<Shared>& running = running_[key];
      leads = running == nullptr;
      if (leads) {
        running = std::make_shared<Shared>(deadline, ended_);
      } else {
        ++running->callers;
      }
      shared = running;
    }
    std::optional<WorkerOutcome> outcome =
        leads ? Lead(key, shared, cancel, run) : Join(worker, *shared, deadline, cancel);
    if (!outcome.has_value()) {
      again = true;
      continue;
    }
    if (!again || outcome->status.reason() != "ROLLBACK_PENDING") return *outcome;
    const Status ended = WaitForEnd(shared->ended_before, deadline, cancel);
    if (!ended.ok()) {
      outcome->status = ended;
      return *outcome;
    }
  }
}

void SharedRuns::Close(WorkerId worker) {
  MutexLock lock(mutex_);
  auto it = running_.lower_bound({worker, ""});
  while (it != running_.end() && it->first.first == worker) it = running_.erase(it);
}

void SharedRuns::Ended() {
  MutexLock lock(mutex_);
  ++ended_;
  changed_.NotifyAll();
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
  const Code code = outcome.status.code();
  shared->given_up =
      code == Code::kCancelled ||
      (code == Code::kDeadlineExceeded && std::chrono::steady_clock::now() >= shared->deadline);
  changed_.NotifyAll();
  return outcome;
}

std::optional<WorkerOutcome> SharedRuns::Join(WorkerId worker, Shared& shared, TimePoint deadline,
                                              const CancelToken* cancel) {
  const CancelToken::Callback wake(cancel, [this] {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  });
  WorkerOutcome left;
  left.worker = worker;
  {
    MutexLock lock(mutex_);
    while (!shared.outcome.has_value()) {
      left.status = CheckWanted(deadline, cancel);
      if (!left.status.ok()) break;
      changed_.WaitUntil(mutex_, deadline);
    }
    if (shared.given_up) return std::nullopt;
    if (shared.outcome.has_value()) return shared.outcome;
  }
  Leave(shared, left.status);
  return left;
}

Status SharedRuns::WaitForEnd(uint64_t before, TimePoint deadline, const CancelToken* cancel) {
  const CancelToken::Callback wake(cancel, [this] {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  });
  MutexLock lock(mutex_);
  while (ended_ == before) {
    TORPOR_RETURN_IF_ERROR(CheckWanted(deadline, cancel));
    changed_.WaitUntil(mutex_, deadline);
  }
  return Status::Ok();
}

void SharedRuns::Leave(Shared& shared, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (--shared.callers > 0) return;
  }
  shared.token.Cancel(why);
}

}  // namespace torpor
