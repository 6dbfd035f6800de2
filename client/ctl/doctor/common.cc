#include <optional>
#include <sstream>

#include "client/ctl/doctor/checks.h"

namespace torpor::ctl::doctor {

std::string Count(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string Listing(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) {
    text.append(text.empty() ? "" : ", ").append(names[i]);
  }
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

std::optional<Mount> MountOf(const Node& node, const std::string& pid, const std::string& path) {
  std::optional<Mount> best;
  std::istringstream lines(node.Read("/proc/" + pid + "/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    // "36 35 98:0 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=10k": fields before the dash vary
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = SplitWords(line.substr(0, dash));
    const std::vector<std::string> after = SplitWords(line.substr(dash + 3));
    if (before.size() < 5 || after.size() < 3) continue;
    const std::string& point = before[4];
    const bool holds =
        point == "/" || path == point || path.compare(0, point.size() + 1, point + "/") == 0;
    // Later ones lie over earlier ones.
    if (!holds || (best.has_value() && point.size() < best->point.size())) continue;
    Mount mount{point, after[0], {}};
    for (const std::string& option : SplitAt(after[2], ',')) {
      const size_t equals = option.find('=');
      mount.options[option.substr(0, equals)] =
          equals == std::string::npos ? "" : option.substr(equals + 1);
    }
    best = std::move(mount);
  }
  return best;
}

bool InContainer(const Node& node) {
  if (node.Exists("/.dockerenv") || node.Exists("/run/.containerenv")) return true;
  if (node.Env("container").has_value() || node.Env("KUBERNETES_SERVICE_HOST").has_value()) {
    return true;
  }
  const std::string groups = node.Read("/proc/1/cgroup").value_or("");
  for (const char* word : {"docker", "kubepods", "containerd", "libpod", "lxc"}) {
    if (groups.find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace torpor::ctl::doctor
