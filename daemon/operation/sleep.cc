#include <string>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/operation.h"
#include "daemon/operation/report.h"
#include "daemon/operation/shared_runs.h"
#include "daemon/operation/sleep_copy.h"
#include "daemon/operation/steps.h"

namespace torpor {
namespace {

// Steps 2 and 3. Whatever fails, no copy and no answer is outstanding afterwards, except an UNMAP
// that the worker did not answer in time, or before the cancellation.
Status QuiesceCopyUnmap(const OperationContext& context, WorkerLink& link, OperationId operation,
                        const SleepSpec& spec, Plan& plan, OperationReport& report,
                        WorkerOutcome& outcome) {
  const auto until = [&] {
    return std::min(spec.deadline, std::chrono::steady_clock::now() + context.worker_deadline);
  };
  {
    const PhaseTimer timer(&outcome.times.quiesce);
    report.Enter(OperationReport::Phase::kQuiesce);
    TORPOR_RETURN_IF_ERROR(link.Quiesce(operation, spec.own, until(), spec.cancel));
  }
  context.inventory.SetAttachment(link.worker(), plan, AttachmentState::kQuiesced);
  std::vector<WorkerLink::Pending> unmaps;
  for (const PlannedArena& arena : plan.arenas) {
    if (!arena.extents.empty()) {
      unmaps.push_back(link.StartUnmap(operation, arena.tag, arena.extents));
    }
  }
  Status status = CopyToImages(context, spec, plan, report, outcome);
  const PhaseTimer timer(&outcome.times.worker);
  report.Enter(OperationReport::Phase::kWorker);
  for (WorkerLink::Pending& unmap : unmaps) {
    const Status unmapped = unmap.Wait(until(), spec.cancel);
    if (status.ok()) status = unmapped;
  }
  return status;
}

Status NotQuiescible(const WorkerInfo& info) {
  std::string message = "worker " + WorkerName(info.id) + " (" + info.name +
                        ") has not said how it can be quieted: only its own call can put it to "
                        "sleep";
  if (!info.sleep_endpoint.empty()) message += "; ask for that by " + info.sleep_endpoint;
  Status status = FailedPrecondition("WORKER_NOT_QUIESCIBLE", std::move(message))
                      .With("worker", WorkerName(info.id))
                      .With("name", info.name);
  if (!info.sleep_endpoint.empty()) status.Add("sleep_endpoint", info.sleep_endpoint);
  return status;
}

WorkerOutcome Run(const OperationContext& context, WorkerId worker, const SleepSpec& spec) {
  WorkerOutcome outcome;
  outcome.worker = worker;
  const PhaseTimer total(&outcome.times.total);
  const auto link = FindLink(context, worker, spec.deadline, spec.cancel);
  const auto info = context.inventory.FindWorker(worker);
  if (info.has_value()) outcome.name = info->name;
  const auto operation =
      link.ok() ? context.inventory.BeginOperation(worker, spec.deadline) : link.status();
  if (!operation.ok() || !info.has_value()) {
    outcome.status = operation.status();
    log::Info("worker {}: no sleep: {}", WorkerName(worker), outcome.status);
    return outcome;
  }

  Plan plan = context.inventory.BeginSleep(worker, spec.tags, spec.policy, spec.force);
  OperationReport report(context.events, OperationKind::kSleep, *operation, worker, info->name);
  report.Started(plan);
  const bool moves = plan.Sum(SegmentState::kResident, SegmentState::kOffloaded) +
                         plan.Sum(SegmentState::kResident, SegmentState::kDiscarded) >
                     Bytes(0);
  if (moves && !spec.own && info->quiesce == wire::Quiesce::kNone) {
    outcome.status = NotQuiescible(*info);
  } else {
    outcome.status = TakeImages(context, info->reservation, spec, plan);
  }
  if (!outcome.status.ok()) {
    log::Warning("worker {}: {} (sleep) failed: {}", WorkerName(worker), OperationName(*operation),
                 outcome.status);
    RollBackBooks(context, **link, *operation, plan);
    report.Ended(outcome);
    return outcome;
  }

  if (moves) {
    outcome.status = QuiesceCopyUnmap(context, **link, *operation, spec, plan, report, outcome);
    if (outcome.status.ok()) {
      context.inventory.SetAttachment(worker, plan, AttachmentState::kUnmapped);
      outcome.status = CheckWanted(spec.deadline, spec.cancel);
    }
  }
  if (outcome.status.ok()) outcome.status = RecordPlan(context, worker, plan, true);
  if (!outcome.status.ok()) {
    log::Warning("worker {}: {} (sleep) failed: {}", WorkerName(worker), OperationName(*operation),
                 outcome.status);
    RollBack({context, worker, *link, *operation, std::move(plan), true, info->name, spec.deadline},
             outcome);
    report.Ended(outcome);
    return outcome;
  }

  // Committed: only forward from here.
  outcome.segments = plan.segments();
  outcome.discarded = plan.Sum(SegmentState::kResident, SegmentState::kDiscarded) +
                      plan.Sum(SegmentState::kOffloaded, SegmentState::kDiscarded);
  {
    const PhaseTimer timer(&outcome.times.handles);
    report.Enter(OperationReport::Phase::kHandles);
    context.inventory.TakeExtents(worker, plan);
    for (PlannedArena& arena : plan.arenas) {
      for (const ExtentPtr& extent : arena.extents) {
        extent->Surrender();
        outcome.device += extent->size();
      }
      EndExtents(context, std::exchange(arena.extents, {}));
    }
    RecordSurrendered(context, info->reservation);
  }
  std::vector<Orphans> orphans = context.inventory.Commit(worker, plan);
  report.Committed(plan, outcome);
  EndOrphans(context, **link, *operation, std::move(orphans));
  if (moves) {
    // The memory is free whether or not the worker says that it knows.
    const Status resumed =
        (*link)->Resume(*operation, context.inventory.AsleepTags(worker),
                        std::chrono::steady_clock::now() + context.worker_deadline);
    if (!resumed.ok()) {
      log::Warning("worker {}: after {} (sleep): {}", WorkerName(worker), OperationName(*operation),
                   resumed);
    }
  }
  plan = Plan();
  EndOperation(context, worker);
  report.Ended(outcome);
  log::Info(
      "worker {} ({}): {} slept {} segments in {} ms: {} freed, {} copied, {} unchanged, {} "
      "discarded",
      WorkerName(worker), outcome.name, OperationName(*operation), outcome.segments,
      std::chrono::duration_cast<milliseconds>(total.Elapsed()).count(),
      FormatBytes(outcome.device), FormatBytes(outcome.copied), FormatBytes(outcome.unchanged),
      FormatBytes(outcome.discarded));
  return outcome;
}

}  // namespace

WorkerOutcome RunSleep(const OperationContext& context, WorkerId worker, const SleepSpec& spec) {
  return context.runs.Do(
      worker, spec.wish, spec.deadline, spec.cancel,
      [&](const CancelToken& cancel) {
        SleepSpec shared = spec;
        shared.cancel = &cancel;
        return Run(context, worker, shared);
      },
      spec.again);
}

}  // namespace torpor
