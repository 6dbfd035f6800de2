#ifndef TORPOR_DAEMON_CORE_WORKER_TIMEOUT_H_
#define TORPOR_DAEMON_CORE_WORKER_TIMEOUT_H_

#include <algorithm>
#include <cstdint>

#include "lib/base/clock.h"

namespace torpor {

// Of a worker's request; negative: none. Never farther than a day, at which nobody waits any more
// and which can be calculated with.
inline Duration WorkerTimeout(int64_t timeout_ms) {
  constexpr int64_t kLongestMs = 86'400'000;
  return milliseconds(timeout_ms < 0 ? kLongestMs : std::min(timeout_ms, kLongestMs));
}

}  // namespace torpor

#endif  // TORPOR_DAEMON_CORE_WORKER_TIMEOUT_H_
