#ifndef TORPOR_DAEMON_ADMISSION_REFUSAL_H_
#define TORPOR_DAEMON_ADMISSION_REFUSAL_H_

#include <vector>

#include "daemon/admission/reservation.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// Everything that a refusal tells.
struct Shortage {
  Bytes device{};  // asked
  Bytes host{};
  BudgetStats budget;
  Bytes kept{};  // of what is available, for those that wait
  size_t waiters = 0;
  Bytes host_budget{};
  Bytes host_used{};
  Bytes host_promised{};
  Bytes host_kept{};
  std::vector<MemoryHolder> promises;  // reservations, with what they have left

  Bytes available() const;
  Bytes host_available() const;
  bool fits() const;
  // On an empty device, and in an empty pool.
  bool EverFits() const;
  Bytes most() const { return budget.total - budget.context - budget.safety_reserve; }
};

// The ten largest of each kind are named.
//   RESOURCE_EXHAUSTED NEVER_FITS: also when nobody had anything; DEVICE_BUDGET_EXHAUSTED or
//   HOST_POOL_EXHAUSTED: with the arithmetic
Status Refusal(const Shortage& shortage, std::vector<MemoryHolder> workers);

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_REFUSAL_H_
