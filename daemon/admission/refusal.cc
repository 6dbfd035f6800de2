#include "daemon/admission/refusal.h"

#include <algorithm>
#include <string>
#include <utility>

namespace torpor {
namespace {

struct Named {
  std::string exact;     // "job (r-1): 52428800, ..."
  std::string readable;  // "job (r-1) 50.0 MiB, ..."
};

Named NameThem(const LargestHolders& largest) {
  Named named;
  for (const MemoryHolder& holder : largest.holders) {
    const std::string who =
        (named.exact.empty() ? "" : ", ") + holder.name + " (" + holder.id + ")";
    named.exact += who + ": " + std::to_string(holder.resident.value());
    named.readable += who + " " + FormatBytes(holder.resident);
  }
  if (largest.others > 0) {
    const std::string more = " and " + std::to_string(largest.others) + " more";
    named.exact += more;
    named.readable += more;
  }
  return named;
}

Status NeverFits(const Shortage& shortage) {
  const BudgetStats& budget = shortage.budget;
  const bool device = shortage.device > shortage.most();
  return ResourceExhausted("NEVER_FITS",
                           device ? FormatBytes(shortage.device) + " asked, at most " +
                                        FormatBytes(shortage.most()) +
                                        " can be had = " + FormatBytes(budget.total) + " total - " +
                                        FormatBytes(budget.context) + " daemon's context - " +
                                        FormatBytes(budget.safety_reserve) + " safety reserve"
                                  : FormatBytes(shortage.host) + " asked of a host pool of " +
                                        FormatBytes(shortage.host_budget))
      .With("requested_bytes", device ? shortage.device.value() : shortage.host.value())
      .With("most_bytes", device ? shortage.most().value() : shortage.host_budget.value())
      .With("total_bytes", budget.total.value())
      .With("context_bytes", budget.context.value())
      .With("safety_reserve_bytes", budget.safety_reserve.value())
      .With("budget_bytes", shortage.host_budget.value());
}

}  // namespace

Status HostRefusal(const HostShortage& shortage) {
  return ResourceExhausted("HOST_POOL_EXHAUSTED",
                           "the host pool has no room: " + FormatBytes(shortage.asked) +
                               " asked, " + FormatBytes(shortage.available) + " of " +
                               FormatBytes(shortage.budget) + " available")
      .With("requested_bytes", shortage.asked.value())
      .With("available_bytes", shortage.available.value())
      .With("used_bytes", shortage.used.value())
      .With("promised_bytes", shortage.promised.value())
      .With("budget_bytes", shortage.budget.value());
}

Bytes Shortage::available() const { return std::max(Bytes(0), budget.available - kept); }

Bytes Shortage::host_available() const {
  return std::max(Bytes(0), host_budget - host_used - host_promised - host_kept);
}

bool Shortage::fits() const {
  return (device == Bytes(0) || device <= available()) &&
         (host == Bytes(0) || host <= host_available());
}

bool Shortage::EverFits() const { return device <= most() && host <= host_budget; }

Status Refusal(const Shortage& shortage, const std::vector<MemoryHolder>& workers) {
  if (!shortage.EverFits()) return NeverFits(shortage);
  if (shortage.device == Bytes(0) || shortage.device <= shortage.available()) {
    return HostRefusal({shortage.host, shortage.host_available(), shortage.host_used,
                        shortage.host_promised, shortage.host_budget})
        .With("queued_bytes", shortage.host_kept.value());
  }
  const BudgetStats& budget = shortage.budget;
  LargestHolders largest;
  largest.holders =
      TenLargest(workers, largest.others, [](const MemoryHolder& one) { return one.resident; });
  const Named resident = NameThem(largest);
  const Named promised = NameThem(shortage.promises);
  std::string message =
      FormatBytes(shortage.device) + " asked, " + FormatBytes(shortage.available()) +
      " available = " + FormatBytes(budget.free) + " free - " + FormatBytes(budget.promised) +
      " promised - " + FormatBytes(budget.safety_reserve) + " safety reserve - " +
      FormatBytes(budget.pending) + " being created";
  if (shortage.kept > Bytes(0)) {
    message += " - " + FormatBytes(shortage.kept) + " kept for those that wait";
  }
  if (!resident.readable.empty()) message += "; resident: " + resident.readable;
  if (!promised.readable.empty()) message += "; promised: " + promised.readable;
  return ResourceExhausted("DEVICE_BUDGET_EXHAUSTED", std::move(message))
      .With("requested_bytes", shortage.device.value())
      .With("available_bytes", shortage.available().value())
      .With("total_bytes", budget.total.value())
      .With("free_bytes", budget.free.value())
      .With("resident_bytes", budget.resident.value())
      .With("context_bytes", budget.context.value())
      .With("other_bytes", budget.other.value())
      .With("promised_bytes", budget.promised.value())
      .With("safety_reserve_bytes", budget.safety_reserve.value())
      .With("pending_bytes", budget.pending.value())
      .With("queued_bytes", shortage.kept.value())
      .With("waiting", shortage.waiters)
      .With("reservations", promised.exact)
      .With("workers", resident.exact);
}

}  // namespace torpor
