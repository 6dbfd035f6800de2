#include <algorithm>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/operation.h"
#include "daemon/operation/report.h"
#include "daemon/operation/shared_runs.h"
#include "daemon/operation/steps.h"

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

// Step 2. Whatever fails, no copy is outstanding afterwards.
Status CreateMapCopy(const OperationContext& context, WorkerLink& link, OperationId operation,
                     const WakeSpec& spec, Draw draw, Plan& plan, OperationReport& report,
                     WorkerOutcome& outcome) {
  std::vector<WorkerLink::Pending> maps;
  Status status;
  report.Enter(OperationReport::Phase::kHandles);
  for (PlannedArena& arena : plan.arenas) {
    status = CheckWanted(spec.deadline, spec.cancel);
    if (!status.ok()) break;
    std::vector<RangeSet::Range> ranges;
    for (const PlannedSegment& segment : arena.segments) {
      ranges.push_back({segment.offset, segment.size});
    }
    Result<std::vector<CopyStep>> steps = std::vector<CopyStep>();
    {
      const PhaseTimer timer(&outcome.times.handles);
      Result<std::vector<ExtentPtr>> extents = CreateExtents(context, link.worker(), ranges, draw);
      if (extents.ok()) {
        arena.extents = *std::move(extents);
        maps.push_back(link.StartMap(operation, arena.tag, arena.extents));
        steps = PlanCopies(arena, false);
      } else {
        steps = extents.status();
      }
    }
    if (steps.ok()) {
      const PhaseTimer timer(&outcome.times.copy);
      report.Enter(OperationReport::Phase::kCopy, arena.tag);
      status = context.transfer->ToDevice(
          *steps, [&] { return CheckWanted(spec.deadline, spec.cancel); },
          [&](Bytes size) { report.Arrived(size); });
    } else {
      status = steps.status();
    }
    if (!status.ok()) break;
  }
  const PhaseTimer timer(&outcome.times.worker);
  report.Enter(OperationReport::Phase::kWorker);
  const Status mapped =
      WorkerLink::WaitForAll(maps, {context.worker_deadline, spec.deadline, spec.cancel});
  return status.ok() ? mapped : status;
}

WorkerOutcome Run(const OperationContext& context, WorkerId worker, const WakeSpec& spec) {
  WorkerOutcome outcome;
  outcome.worker = worker;
  const PhaseTimer total(&outcome.times.total);
  const auto info = context.inventory.FindWorker(worker);
  if (info.has_value()) outcome.name = info->name;
  const auto link = context.directory.Find(worker);
  const auto operation = link.ok() ? context.inventory.BeginOperation(worker) : link.status();
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
      CreateMapCopy(context, **link, *operation, spec, *std::move(draw), plan, report, outcome);
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
