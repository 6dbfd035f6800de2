#include "daemon/service/deadline.h"

#include <algorithm>

namespace torpor {

Duration OperationTime(gpr_timespec deadline, Duration none) {
  constexpr Duration kLongest = std::chrono::hours(24 * 365);
  constexpr Duration kMargin = milliseconds(100);
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return none;
  const gpr_timespec left = deadline.clock_type == GPR_TIMESPAN
                                ? deadline
                                : gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec < 0) return Duration::zero();
  if (left.tv_sec >= std::chrono::duration_cast<seconds>(kLongest).count()) return kLongest;
  const Duration time = seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
  return time - std::min(time / 4, kMargin);
}

}  // namespace torpor
