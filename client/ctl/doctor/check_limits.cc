// Limits of this process, which a daemon that is started here has as well, and of the machine.

#include <algorithm>

#include "client/ctl/doctor/cgroup.h"
#include "client/ctl/doctor/check_daemon_process.h"
#include "client/ctl/doctor/checks.h"

namespace torpor::ctl::doctor {
namespace {

std::string Text(int64_t limit) { return limit < 0 ? "no limit" : std::to_string(limit); }

Finding OpenFiles(const Node& node) {
  constexpr char kName[] = "open-files";
  const auto limit = LimitOf(node, "self", "Max open files");
  if (!limit.has_value()) return Fine(kName, "not known");
  const std::string what = "soft limit " + Text(limit->soft) + ", hard limit " + Text(limit->hard);
  Finding finding = Fine(kName, what);
  if (limit->hard >= 0 && limit->hard < kFewDescriptors) {
    finding = Warning(kName, what + ": few for many segments",
                      "Raise the hard limit: LimitNOFILE= of the unit (also of containerd or "
                      "dockerd), nofile in /etc/security/limits.conf.\n$ ulimit -Hn 1048576");
  }
  return std::move(finding).With("soft", limit->soft).With("hard", limit->hard);
}

Finding SystemFiles(const Node& node) {
  constexpr char kName[] = "system-files";
  const std::vector<std::string> words = SplitWords(node.Line("/proc/sys/fs/file-nr").value_or(""));
  const auto one = node.Number("/proc/sys/fs/nr_open");
  if (words.size() < 3) return Fine(kName, "not known");
  const auto used = node.Number("/proc/sys/fs/file-nr").value_or(0);
  // The last one of the line; where there is no limit it is the largest number there is.
  const int64_t most = words[2].size() > 18 ? -1 : std::stoll(words[2]);
  const std::string what = std::to_string(used) + " in use, fs.file-max " + Text(most) +
                           ", fs.nr_open " + Text(one.value_or(-1));
  Finding finding = Fine(kName, what);
  if (most >= 0 && used > most - most / 5) {
    finding = Warning(kName, what + ": few are left",
                      "Raise it (for good: a file in /etc/sysctl.d).\n"
                      "$ sysctl -w fs.file-max=" +
                          std::to_string(4 * most));
  }
  return std::move(finding)
      .With("used", used)
      .With("file_max", most)
      .With("nr_open", one.value_or(-1));
}

Finding Threads(const Node& node) {
  constexpr char kName[] = "threads";
  constexpr int64_t kNeeded = 512;  // of a daemon with many calls, and some beside
  const auto user = LimitOf(node, "self", "Max processes");
  const auto group = TaskLimit(node, "self");
  const int64_t processes = user.has_value() ? user->soft : -1;
  const int64_t all = node.Number("/proc/sys/kernel/threads-max").value_or(-1);
  const int64_t pids = node.Number("/proc/sys/kernel/pid_max").value_or(-1);
  std::string what = "user " + Text(processes) + ", machine " + Text(all) + ", pid_max " +
                     Text(pids) + ", cgroup " +
                     (group.has_value() ? Text(group->limit) : "no limit");
  if (group.has_value()) what += " (" + std::to_string(group->used) + " in use)";
  Finding finding = Fine(kName, what);
  const bool few_in_group = group.has_value() && group->left() < kNeeded;
  if (few_in_group || (processes >= 0 && processes < kNeeded)) {
    finding = Warning(kName, what + ": a daemon may need " + std::to_string(kNeeded),
                      few_in_group ? "Raise the cgroup's limit (systemd: TasksMax=; containers: "
                                     "--pids-limit, podPidsLimit).\n$ cat " +
                                         group->file
                                   : "Raise the user's limit: LimitNPROC=, nproc in limits.conf.\n"
                                     "$ ulimit -u unlimited");
  }
  if (group.has_value()) {
    finding.numbers["cgroup_limit"] = group->limit;
    finding.numbers["cgroup_used"] = group->used;
  }
  return std::move(finding)
      .With("user_limit", processes)
      .With("threads_max", all)
      .With("pid_max", pids);
}

}  // namespace

Findings CheckLimits(const Node& node) {
  return {OpenFiles(node), SystemFiles(node), Threads(node)};
}

}  // namespace torpor::ctl::doctor
