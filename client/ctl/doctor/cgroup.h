#ifndef TORPOR_CLIENT_CTL_DOCTOR_CGROUP_H_
#define TORPOR_CLIENT_CTL_DOCTOR_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/ctl/doctor/node.h"

namespace torpor::ctl::doctor {

// One limit of a cgroup.
struct GroupLimit {
  std::string file;  // that says so, "/sys/fs/cgroup/system.slice/memory.max"
  int64_t limit = 0;
  int64_t used = 0;  // of memory: without page cache, which gives way
  int64_t left() const { return limit > used ? limit - used : 0; }
};

// The limit that leaves least for process `pid` ("self": this one), of its cgroup (v1 or v2) and
// those above it; nothing where there is none, or it cannot be read.
std::optional<GroupLimit> MemoryLimit(const Node& node, const std::string& pid);
std::optional<GroupLimit> TaskLimit(const Node& node, const std::string& pid);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_CGROUP_H_
