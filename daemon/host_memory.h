#ifndef TORPOR_DAEMON_HOST_MEMORY_H_
#define TORPOR_DAEMON_HOST_MEMORY_H_

#include <string>

#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// Memory that this process can still take: what the machine has available, or what is left under
// the limits of its cgroup (v1 or v2, and of those above it) if that is less. `root` is put before
// /proc and /sys/fs/cgroup. INTERNAL HOST_MEMORY_UNKNOWN.
Result<Bytes> AvailableHostMemory(const std::string& root = "");

}  // namespace torpor

#endif  // TORPOR_DAEMON_HOST_MEMORY_H_
