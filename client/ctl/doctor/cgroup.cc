#include "client/ctl/doctor/cgroup.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

namespace torpor::ctl::doctor {
namespace {

// Larger limits are none: v1 writes the largest multiple of a page.
constexpr int64_t kUnlimited = int64_t{1} << 60;

// Where a version of cgroups says what of one resource.
struct Files {
  std::vector<std::string> mounts;  // the first that is there
  std::vector<std::string> limits;  // each of them holds
  std::string usage;
  std::vector<std::string> cache_keys;  // of memory.stat
};

const Files kMemory2 = {{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
                        {"memory.max", "memory.high"},
                        "memory.current",
                        {"inactive_file ", "active_file "}};
const Files kMemory1 = {{"/sys/fs/cgroup/memory"},
                        {"memory.limit_in_bytes"},
                        "memory.usage_in_bytes",
                        {"total_inactive_file ", "total_active_file "}};
const Files kTasks2 = {
    {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, {"pids.max"}, "pids.current", {}};
const Files kTasks1 = {{"/sys/fs/cgroup/pids"}, {"pids.max"}, "pids.current", {}};

int64_t ToNumber(const std::optional<std::string>& text) {
  std::istringstream words(text.value_or(""));
  int64_t number = 0;
  return words >> number ? number : 0;
}

void Consider(const Node& node, const Files& files, std::string group,
              std::optional<GroupLimit>& least) {
  while (true) {
    for (const std::string& mount : files.mounts) {
      const std::string folder = mount + (group == "/" ? "" : group) + "/";
      for (const std::string& name : files.limits) {
        const std::optional<int64_t> limit = node.Number(folder + name);
        if (!limit.has_value() || *limit >= kUnlimited) continue;
        int64_t used = node.Number(folder + files.usage).value_or(0);
        for (const std::string& key : files.cache_keys) {
          used -= ToNumber(node.Value(folder + "memory.stat", key));
        }
        GroupLimit found{folder + name, *limit, std::max<int64_t>(used, 0)};
        if (!least.has_value() || found.left() < least->left()) least = std::move(found);
      }
    }
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

std::optional<GroupLimit> Least(const Node& node, const std::string& pid,
                                const std::string& controller, const Files& v1, const Files& v2) {
  std::optional<GroupLimit> least;
  std::istringstream lines(node.Read("/proc/" + pid + "/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" (v2), "4:cpu,memory:/path" (v1)
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::vector<std::string> controllers =
        SplitAt(line.substr(first + 1, second - first - 1), ',');
    const std::string group = line.substr(second + 1);
    if (controllers.size() == 1 && controllers[0].empty()) {
      Consider(node, v2, group, least);
    } else if (std::count(controllers.begin(), controllers.end(), controller) > 0) {
      Consider(node, v1, group, least);
    }
  }
  return least;
}

}  // namespace

std::optional<GroupLimit> MemoryLimit(const Node& node, const std::string& pid) {
  return Least(node, pid, "memory", kMemory1, kMemory2);
}

std::optional<GroupLimit> TaskLimit(const Node& node, const std::string& pid) {
  return Least(node, pid, "pids", kTasks1, kTasks2);
}

}  // namespace torpor::ctl::doctor
