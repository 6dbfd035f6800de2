#ifndef TORPOR_DAEMON_ADMISSION_REFUSAL_H_
#define TORPOR_DAEMON_ADMISSION_REFUSAL_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "daemon/admission/reservation.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// The ten largest of those that hold memory.
struct LargestHolders {
  std::vector<MemoryHolder> holders;
  size_t others = 0;
};

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
  LargestHolders promises;  // reservations, with what they have left

  Bytes available() const;
  Bytes host_available() const;
  bool fits() const;
  // On an empty device, and in an empty pool.
  bool EverFits() const;
  Bytes most() const { return budget.total - budget.context - budget.safety_reserve; }
};

// `holds(one)`: how much.
template <typename One, typename Holds>
std::vector<One> TenLargest(std::vector<One> all, size_t& others, const Holds& holds) {
  constexpr size_t kNamed = 10;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const One& one) { return holds(one) <= Bytes(0); }),
            all.end());
  std::stable_sort(all.begin(), all.end(),
                   [&](const One& a, const One& b) { return holds(a) > holds(b); });
  others = all.size() > kNamed ? all.size() - kNamed : 0;
  all.resize(all.size() - others);
  return all;
}

// RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED.
struct HostShortage {
  Bytes asked{};
  Bytes available{};
  Bytes used{};
  Bytes promised{};
  Bytes budget{};
};
Status HostRefusal(const HostShortage& shortage);

//   RESOURCE_EXHAUSTED NEVER_FITS: also when nobody had anything; DEVICE_BUDGET_EXHAUSTED or
//   HOST_POOL_EXHAUSTED: with the arithmetic
Status Refusal(const Shortage& shortage, const std::vector<MemoryHolder>& workers);

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_REFUSAL_H_
