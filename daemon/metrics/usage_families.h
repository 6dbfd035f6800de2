#ifndef TORPOR_DAEMON_METRICS_USAGE_FAMILIES_H_
#define TORPOR_DAEMON_METRICS_USAGE_FAMILIES_H_

#include <cstddef>

#include "daemon/core/core.h"
#include "daemon/metrics/family.h"
#include "lib/base/clock.h"

namespace torpor::metrics {

// So many workers and tags have values of their own, those with the most bytes; what the others
// have is added up under kOther.
constexpr size_t kMostWorkers = 32;
constexpr size_t kMostTags = 8;
constexpr char kOther[] = "other";

// What Usage tells, as families. Workers of one name are one. `now`: on the clock of the queue.
void AddUsage(const UsageReport& usage, TimePoint now, Families& families);

}  // namespace torpor::metrics

#endif  // TORPOR_DAEMON_METRICS_USAGE_FAMILIES_H_
