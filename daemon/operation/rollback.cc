#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/sleep_copy.h"
#include "daemon/operation/steps.h"

namespace torpor {
namespace {

// How long a caller waits for a worker to acknowledge before it is told `rollback_pending`.
constexpr Duration kGrace = milliseconds(250);
// The same when the caller's deadline is near or has passed: the answer has to reach it.
constexpr Duration kLateGrace = milliseconds(10);
constexpr Duration kFirstRetry = milliseconds(20);
constexpr Duration kLastRetry = seconds(1);

// Tells the waiting caller that the roll back is done, and waits between attempts.
struct Progress {
  Mutex mutex;
  CondVar changed;
  bool done GUARDED_BY(mutex) = false;
};

// Brings the worker's mappings to what they were, by what it says it maps.
Status Reconcile(const Undo& undo, OperationId operation, const std::vector<ExtentId>& mapped_ids) {
  const std::set<ExtentId> mapped(mapped_ids.begin(), mapped_ids.end());
  std::vector<WorkerLink::Pending> pending;
  for (const PlannedArena& arena : undo.plan.arenas) {
    std::vector<ExtentPtr> wrong;
    for (const ExtentPtr& extent : arena.extents) {
      if ((mapped.count(extent->id()) != 0) != undo.sleep) wrong.push_back(extent);
    }
    if (wrong.empty()) continue;
    pending.push_back(undo.sleep ? undo.link->StartMap(operation, arena.tag, wrong)
                                 : undo.link->StartUnmap(operation, arena.tag, wrong));
  }
  return WorkerLink::WaitForAll(pending, {undo.context.worker_deadline});
}

// Cancels and reconciles until it worked or the worker is gone.
void BringBack(const Undo& undo) {
  Duration pause = kFirstRetry;
  OperationId operation = undo.operation;
  while (undo.link->channel().Gone().ok()) {
    const auto cancel = undo.link->StartCancel(operation);
    Status status = cancel.status();
    if (cancel.ok()) {
      const auto mapped = undo.link->WaitCancel(*cancel, std::nullopt);
      operation = undo.context.inventory.NewOperationId();
      status = mapped.ok() ? Reconcile(undo, operation, *mapped) : mapped.status();
    }
    if (status.ok()) {
      const wire::AsleepTags asleep = undo.context.inventory.AsleepTags(undo.worker);
      status = undo.link->Resume(operation, asleep,
                                 std::chrono::steady_clock::now() + undo.context.worker_deadline);
    }
    if (status.ok()) return;
    log::Warning("worker {}: rolling back {}, again: {}", WorkerName(undo.worker),
                 OperationName(undo.operation), status);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLastRetry);
  }
}

void Finish(Undo& undo) {
  BringBack(undo);
  if (const Status recorded = RecordPlan(undo.context, undo.worker, undo.plan, false);
      !recorded.ok()) {
    log::Error("worker {}: roll back of {} is not recorded: {}", WorkerName(undo.worker),
               OperationName(undo.operation), recorded);
  }
  if (!undo.sleep) {
    for (PlannedArena& arena : undo.plan.arenas) {
      EndExtents(undo.context, std::exchange(arena.extents, {}));
    }
  }
  ReturnImages(undo.context, undo.plan);
  std::vector<Orphans> orphans = undo.context.inventory.RollBack(undo.worker, undo.plan);
  EndOrphans(undo.context, *undo.link, undo.context.inventory.NewOperationId(), std::move(orphans));
  undo.plan = Plan();
  EndOperation(undo.context, undo.worker);
  OperationEvent done;
  done.change = OperationEvent::Change::kRolledBack;
  done.kind = undo.sleep ? OperationKind::kSleep : OperationKind::kWakeUp;
  done.operation = undo.operation;
  done.worker = undo.worker;
  done.worker_name = undo.worker_name;
  undo.context.events.Publish(std::move(done));
  log::Info("worker {}: {} rolled back", WorkerName(undo.worker), OperationName(undo.operation));
}

}  // namespace

void RollBack(Undo undo, WorkerOutcome& outcome) {
  const OperationContext context = undo.context;
  const WorkerId worker = undo.worker;
  const OperationId operation = undo.operation;
  const TimePoint caller_deadline = undo.deadline;
  const auto progress = std::make_shared<Progress>();
  const auto shared = std::make_shared<Undo>(std::move(undo));
  const auto finish = [shared, progress] {
    Finish(*shared);
    MutexLock lock(progress->mutex);
    progress->done = true;
    progress->changed.NotifyAll();
  };
  if (const Status started = context.tasks->Run(finish); !started.ok()) {
    log::Warning("worker {}: {} is rolled back by its caller: {}", WorkerName(worker),
                 OperationName(operation), started);
    finish();
  }
  const TimePoint now = std::chrono::steady_clock::now();
  const TimePoint until = std::max(now + kLateGrace, std::min(now + kGrace, caller_deadline));
  MutexLock lock(progress->mutex);
  while (!progress->done && std::chrono::steady_clock::now() < until) {
    progress->changed.WaitUntil(progress->mutex, until);
  }
  outcome.rollback_pending = !progress->done;
  if (outcome.rollback_pending) {
    outcome.status.Add("rollback_pending", "true");
    context.inventory.MarkUnknown(worker, operation);
  }
}

}  // namespace torpor
