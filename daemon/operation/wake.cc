#include <algorithm>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/operation.h"
#include "daemon/operation/report.h"
#include "daemon/operation/shared_runs.h"
#include "daemon/operation/steps.h"
#include "daemon/operation/wake_copy.h"

namespace torpor {
namespace {

void OrderArenas(const std::vector<std::string>& order, Plan& plan) {
  const auto rank = [&](const PlannedArena& arena) {
    return std::find(order.begin(), order.end(), arena.tag) - order.begin();
  };
  std::stable_sort(plan.arenas.begin(), plan.arenas.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

Result<Draw> Admit(const OperationContext& context, const WorkerInfo& info, const WakeSpec& spec,
                   Bytes size) {
  if (!spec.reservation.empty()) return context.admission.DrawDevice(size, spec.reservation);
  if (!info.reservation.empty()) {
    Result<Draw> draw = context.admission.DrawDevice(size, info.reservation);
    if (draw.ok()) return draw;
  }
  return context.admission.DrawDevice(size, "");
}

WorkerOutcome Run(const OperationContext& context, WorkerId worker, const WakeSpec& spec) {
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
    log::Info("worker {}: no wake: {}", WorkerName(worker), outcome.status);
    return outcome;
  }

  Plan plan = context.inventory.BeginWake(worker, spec.tags);
  OrderArenas(spec.order, plan);
  OperationReport report(context.events, OperationKind::kWakeUp, *operation, worker, info->name);
  report.Started(plan);
  const Bytes copied = plan.Sum(SegmentState::kOffloaded, SegmentState::kResident);
  const Bytes cleared = plan.Sum(SegmentState::kDiscarded, SegmentState::kResident);
  const Bytes size = copied + cleared;
  Result<Draw> draw = size > Bytes(0) ? Admit(context, *info, spec, size) : Draw();
  if (!draw.ok() || size == Bytes(0)) {
    outcome.status = draw.status();
    if (!draw.ok()) {
      log::Warning("worker {}: {} (wake) failed: {}", WorkerName(worker), OperationName(*operation),
                   outcome.status);
    }
    RollBackBooks(context, **link, *operation, plan);
    report.Ended(outcome);
    return outcome;
  }

  outcome.status =
      CreateAndFill(context, **link, *operation, spec, *std::move(draw), plan, report, outcome);
  if (outcome.status.ok()) outcome.status = CheckWanted(spec.deadline, spec.cancel);
  if (outcome.status.ok()) outcome.status = RecordPlan(context, worker, plan, true);
  if (!outcome.status.ok()) {
    log::Warning("worker {}: {} (wake) failed: {}", WorkerName(worker), OperationName(*operation),
                 outcome.status);
    RollBack(
        {context, worker, *link, *operation, std::move(plan), false, info->name, spec.deadline},
        outcome);
    report.Ended(outcome);
    return outcome;
  }

  // Committed: only forward from here.
  outcome.segments = plan.segments();
  outcome.device = size;
  outcome.copied = copied;
  outcome.discarded = cleared;
  std::vector<Orphans> orphans = context.inventory.Commit(worker, plan);
  // They stay while there is room: what is unchanged at the next sleep need not be copied.
  for (PlannedArena& arena : plan.arenas) {
    for (PlannedSegment& segment : arena.segments) {
      if (segment.image != nullptr) context.images.Retire(*segment.image);
    }
  }
  report.Committed(plan, outcome);
  EndOrphans(context, **link, *operation, std::move(orphans));
  const Status resumed =
      (*link)->Resume(*operation, context.inventory.AsleepTags(worker),
                      std::chrono::steady_clock::now() + context.worker_deadline);
  if (!resumed.ok()) {
    // The memory is there and mapped; the worker has yet to notice.
    outcome.status = resumed;
    outcome.status.Add("committed", "true");
    log::Warning("worker {}: after {} (wake): {}", WorkerName(worker), OperationName(*operation),
                 resumed);
  }
  plan = Plan();
  EndOperation(context, worker);
  report.Ended(outcome);
  log::Info("worker {} ({}): {} woke {} segments in {} ms: {} taken, {} copied, {} cleared",
            WorkerName(worker), outcome.name, OperationName(*operation), outcome.segments,
            std::chrono::duration_cast<milliseconds>(total.Elapsed()).count(),
            FormatBytes(outcome.device), FormatBytes(outcome.copied),
            FormatBytes(outcome.discarded));
  return outcome;
}

}  // namespace

WorkerOutcome RunWake(const OperationContext& context, WorkerId worker, const WakeSpec& spec) {
  return context.runs.Do(
      worker, spec.wish, spec.deadline, spec.cancel,
      [&](const CancelToken& cancel) {
        WakeSpec shared = spec;
        shared.cancel = &cancel;
        return Run(context, worker, shared);
      },
      spec.again);
}

}  // namespace torpor
