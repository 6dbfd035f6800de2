#include "daemon/operation/recover.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "daemon/operation/shared_runs.h"
#include "daemon/operation/steps.h"

namespace torpor {
namespace {

constexpr Duration kFirstRetry = milliseconds(20);
constexpr Duration kLastRetry = seconds(1);

// True if nothing was wrong.
Result<bool> Reconcile(const OperationContext& context, WorkerLink& link,
                       const Recovering& recovering, OperationId operation,
                       const std::vector<ExtentId>& mapped_ids) {
  std::set<ExtentId> mapped(mapped_ids.begin(), mapped_ids.end());
  std::vector<WorkerLink::Pending> pending;
  int64_t missing = 0;
  for (const auto& [tag, extents] : context.inventory.Extents(link.worker())) {
    std::vector<ExtentPtr> to_map;
    for (const ExtentPtr& extent : extents) {
      if (extent->id().value() >= recovering.first_new.value()) continue;
      if (mapped.erase(extent->id()) == 0) to_map.push_back(extent);
    }
    if (to_map.empty()) continue;
    missing += static_cast<int64_t>(to_map.size());
    pending.push_back(link.StartMap(operation, tag, to_map));
  }
  std::vector<wire::Extent> to_unmap;
  for (const ExtentId id : mapped) {
    if (id.value() < recovering.first_new.value() && recovering.lost.count(id) == 0) {
      to_unmap.push_back({id, Bytes(0), Bytes(0)});
    }
  }
  const Status status = WorkerLink::WaitForAll(pending, {context.worker_deadline});
  Status unmapped;
  if (!to_unmap.empty())
    unmapped = link.UnmapAnywhere(operation, to_unmap, context.worker_deadline);
  TORPOR_RETURN_IF_ERROR(status);
  TORPOR_RETURN_IF_ERROR(unmapped);
  if (missing > 0 || !to_unmap.empty()) {
    log::Info("worker {}: {} extents mapped again, {} unmapped", WorkerName(link.worker()), missing,
              to_unmap.size());
  }
  return missing == 0 && to_unmap.empty();
}

}  // namespace

void Recover(const OperationContext& context, WorkerLink& link, const Recovering& recovering) {
  Duration pause = kFirstRetry;
  OperationId operation = recovering.operation;
  while (link.channel().Gone().ok()) {
    const auto cancel = link.StartCancel(operation);
    Result<bool> same = cancel.status();
    if (cancel.ok()) {
      const auto mapped = link.WaitCancel(*cancel, std::nullopt);
      operation = context.inventory.NewOperationId();
      same = mapped.ok() ? Reconcile(context, link, recovering, operation, *mapped)
                         : Result<bool>(mapped.status());
    }
    Status status = same.status();
    // What the worker frees meanwhile may have been mapped again: it is asked until all is right.
    if (status.ok() && !*same) {
      std::this_thread::sleep_for(milliseconds(1));
      continue;
    }
    if (status.ok()) {
      EndExtents(context, context.inventory.SettleReturned(link.worker(), recovering.freed));
      status = link.Resume(operation, context.inventory.AsleepTags(link.worker()),
                           std::chrono::steady_clock::now() + context.worker_deadline);
    }
    if (status.ok()) break;
    log::Warning("worker {}: coming back, again: {}", WorkerName(link.worker()), status);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLastRetry);
  }
  // Not EndOperation: what waits for this end can still be joined.
  context.inventory.EndOperation(link.worker());
  context.runs.Ended();
}

}  // namespace torpor
