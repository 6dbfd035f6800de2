#include "daemon/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

namespace torpor {
namespace {

// The number a file consists of; nothing for "max", or where there is no such file.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value && value >= 0) return value;
  return std::nullopt;
}

std::optional<int64_t> MemAvailable(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    int64_t kib = 0;
    if (words >> key >> kib && key == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

// The number that belongs to `key` in a file of "key number" lines.
int64_t ReadKey(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

// Where a version of cgroups says what.
struct GroupFiles {
  std::string mount;
  std::vector<std::string> limits;  // each of them holds
  std::string usage;
  std::vector<std::string> cache_keys;  // in memory.stat
};

// What is left under the limits of `group` (as "/a/b") and of the groups above it.
int64_t LeftInGroup(const GroupFiles& files, std::string group) {
  int64_t left = std::numeric_limits<int64_t>::max();
  while (true) {
    const std::string folder = files.mount + (group == "/" ? "" : group) + "/";
    for (const std::string& file : files.limits) {
      const std::optional<int64_t> limit = ReadNumber(folder + file);
      if (!limit.has_value()) continue;
      // The page cache counts as used and yet gives way; MemAvailable sees it so, too.
      int64_t cache = 0;
      for (const std::string& key : files.cache_keys) cache += ReadKey(folder + "memory.stat", key);
      const int64_t used =
          std::max<int64_t>(ReadNumber(folder + files.usage).value_or(0) - cache, 0);
      left = std::min(left, std::max<int64_t>(*limit - used, 0));
    }
    if (group.empty() || group == "/") return left;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

Result<Bytes> AvailableHostMemory(const std::string& root) {
  const std::optional<int64_t> available = MemAvailable(root + "/proc/meminfo");
  if (!available.has_value()) {
    return Internal("HOST_MEMORY_UNKNOWN",
                    "/proc/meminfo has no MemAvailable: say how much host "
                    "memory to use");
  }
  int64_t left = *available;
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // "0::/path" (v2), "4:cpu,memory:/path" (v1)
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      // Beyond memory.high a group is not refused memory, but slowed down to a crawl. Beside v1 the
      // tree lies in a folder of its own.
      for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        left = std::min(left, LeftInGroup({root + mount,
                                           {"memory.max", "memory.high"},
                                           "memory.current",
                                           {"inactive_file", "active_file"}},
                                          path));
      }
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, LeftInGroup({root + "/sys/fs/cgroup/memory",
                                         {"memory.limit_in_bytes"},
                                         "memory.usage_in_bytes",
                                         {"total_inactive_file", "total_active_file"}},
                                        path));
    }
  }
  return Bytes(left);
}

}  // namespace torpor
