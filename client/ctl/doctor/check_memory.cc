// Host memory: what a pool would be made of, and whether there is enough.

#include <algorithm>
#include <cstdlib>
#include <set>

#include "client/ctl/doctor/cgroup.h"
#include "client/ctl/doctor/check_daemon_process.h"
#include "client/ctl/doctor/checks.h"
#include "daemon/host_memory.h"
#include "lib/base/units.h"

namespace torpor::ctl::doctor {
namespace {

constexpr char kThp[] = "/sys/kernel/mm/transparent_hugepage/";
constexpr char kPoolFolder[] = "/run/torpor-pool";  // of the package's mount unit

std::string Size(int64_t bytes) { return FormatBytes(Bytes(bytes)); }

// "never" of "always within_size advise [never] deny force"
std::string Chosen(const Node& node, const std::string& file) {
  const std::string line = node.Line(kThp + file).value_or("");
  const size_t open = line.find('[');
  const size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return line.substr(open + 1, close - open - 1);
}

// Whether a memfd that asks for huge pages may get them.
bool MemfdMayHaveHugePages(const Node& node) {
  const std::string all = Chosen(node, "shmem_enabled");
  if (all == "deny" || all == "force") return all == "force";
  // Newer kernels have a setting for each size, which may leave it to that of all.
  const std::string own = Chosen(node, "hugepages-2048kB/shmem_enabled");
  const std::string& setting = own.empty() || own == "inherit" ? all : own;
  return setting == "always" || setting == "within_size" || setting == "advise";
}

bool HasSysAdmin(const Node& node) {
  constexpr int kSysAdmin = 21;
  const std::string capabilities = node.Value("/proc/self/status", "CapEff:").value_or("0");
  return (std::strtoull(capabilities.c_str(), nullptr, 16) >> kSysAdmin & 1) != 0;
}

bool HasHugePoolFolder(const Node& node) {
  const auto mount = MountOf(node, "self", kPoolFolder);
  return mount.has_value() && mount->point == kPoolFolder && mount->options.count("huge") > 0 &&
         mount->options.at("huge") == "always";
}

int64_t Meminfo(const Node& node, const std::string& key) {
  const std::string value = node.Value("/proc/meminfo", key + ":").value_or("0");
  return std::strtoll(value.c_str(), nullptr, 10) * 1024;
}

Finding HugePages(const Node& node) {
  constexpr char kName[] = "huge-pages";
  constexpr char kRemedy[] =
      "Allow them (for good: a file in /etc/tmpfiles.d), or give the pool a tmpfs that has them, "
      "and say --pool_dir: the package's mount unit does that.\n"
      "$ echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled\n"
      "$ systemctl enable --now 'run-torpor\\x2dpool.mount'";
  const std::string shmem = Chosen(node, "shmem_enabled");
  const std::string enabled = Chosen(node, "enabled");
  const int64_t in_use = Meminfo(node, "ShmemHugePages");
  if (shmem.empty()) {
    return Warning(kName, "this kernel has no transparent huge pages for shared memory",
                   "Use a kernel with CONFIG_TRANSPARENT_HUGEPAGE.");
  }
  const std::string what = "shmem_enabled is " + shmem + ", enabled is " + enabled;
  Finding finding;
  if (MemfdMayHaveHugePages(node)) {
    finding = Fine(kName, what + ": a pool is a memfd with huge pages");
  } else if (HasHugePoolFolder(node)) {
    finding = Fine(kName, what + "; " + kPoolFolder + " has them: use --pool_dir");
  } else if (HasSysAdmin(node)) {
    finding = Fine(kName, what +
                              ": a pool is a tmpfs of its own with huge pages, where the daemon "
                              "has CAP_SYS_ADMIN, as this user");
  } else {
    finding = Warning(kName,
                      what + ", no CAP_SYS_ADMIN: a pool is anonymous memory" +
                          (enabled == "never" ? ", with small pages" : "") +
                          ", which ends with its daemon",
                      kRemedy);
  }
  return std::move(finding).With("shmem_huge_bytes", in_use);
}

int64_t DeviceMemory(const GpuSurvey& gpus) {
  int64_t total = 0;
  for (const CudaProbe::Device& device : gpus.cuda.devices) total += device.total_bytes;
  return total;
}

Finding HostMemory(const Node& node, const GpuSurvey& gpus) {
  constexpr char kName[] = "host-memory";
  const Result<Bytes> left = AvailableHostMemory(node.root());
  if (!left.ok()) {
    return Warning(kName, "/proc/meminfo has no MemAvailable",
                   "Say how large pools are to be: --host_pool.");
  }
  const int64_t total = Meminfo(node, "MemTotal");
  const int64_t available = Meminfo(node, "MemAvailable");
  const int64_t pool = left->value() / 2;
  const int64_t device = DeviceMemory(gpus);
  const auto count = static_cast<int64_t>(gpus.cuda.devices.size());
  std::string what = Size(available) + " of " + Size(total) + " available";
  if (left->value() < available) what += ", " + Size(left->value()) + " in this cgroup";
  what += "; --host_pool=auto takes " + Size(pool);
  if (count > 0) what += "; " + Count(count, "device") + " with " + Size(device);
  Finding finding = Fine(kName, what);
  if (count > 1) {
    finding = Warning(kName, what,
                      "Say --host_pool: each daemon takes half of what is left when it starts.");
  }
  if (left->value() < device) {
    finding = Warning(kName, what + ": not all that fits on the devices can sleep",
                      "Say --host_pool for what is to sleep, and put the rest to sleep at level 2, "
                      "which keeps nothing.");
  }
  if (pool < MiB(512).value()) {
    finding = Problem(kName, what + ": hardly any model fits", "Free host memory, or add some.");
  }
  return std::move(finding)
      .With("total_bytes", total)
      .With("available_bytes", available)
      .With("auto_pool_bytes", pool)
      .With("device_bytes", device);
}

Finding PoolsFit(const Node& node, const std::vector<DaemonSurvey>& daemons) {
  constexpr char kName[] = "pools-fit";
  int64_t pools = 0;
  int64_t wanted = 0;
  int64_t answering = 0;
  for (const DaemonSurvey& daemon : daemons) {
    if (!daemon.usage.has_value()) continue;
    const v1::HostPoolUsage& pool = daemon.usage->host_pool();
    ++answering;
    pools += pool.budget_bytes();
    wanted += std::max<int64_t>(pool.budget_bytes() - pool.pinned_bytes(), 0);
  }
  if (answering == 0) return Fine(kName, "no daemon answers");
  const int64_t available = Meminfo(node, "MemAvailable");
  const std::string what = Count(answering, "pool") + " of " + Size(pools) + ", " + Size(wanted) +
                           " not pinned yet, " + Size(available) + " available";
  Finding finding = Fine(kName, what);
  if (wanted > available) {
    finding = Warning(kName, what, "Give the daemons smaller pools: --host_pool.");
  }
  return std::move(finding)
      .With("pools", answering)
      .With("budget_bytes", pools)
      .With("unpinned_bytes", wanted)
      .With("available_bytes", available);
}

Finding Group(const Node& node) {
  constexpr char kName[] = "memory-cgroup";
  const auto limit = MemoryLimit(node, "self");
  if (!limit.has_value()) return Fine(kName, "no limit");
  const std::string what = Size(limit->left()) + " left of " + Size(limit->limit) + " (" +
                           limit->file.substr(limit->file.rfind('/') + 1) + ")";
  Finding finding = Fine(kName, what);
  if (limit->left() < GiB(1).value()) {
    finding = Warning(kName, what,
                      "Raise the limit to the pools' size and 1 GiB for each daemon (Kubernetes: "
                      "the pod's memory limit).\n$ cat " +
                          limit->file);
  }
  return std::move(finding).With("limit_bytes", limit->limit).With("left_bytes", limit->left());
}

Finding Swap(const Node& node) {
  constexpr char kName[] = "swap";
  const int64_t total = Meminfo(node, "SwapTotal");
  const int64_t used = total - Meminfo(node, "SwapFree");
  const std::string what = total == 0 ? "none" : Size(used) + " of " + Size(total) + " in use";
  Finding finding = Fine(kName, what);
  if (total > 0 && used > total / 2) {
    finding = Warning(kName, what + ": the machine is short of memory",
                      "Give the daemons smaller pools: --host_pool.");
  }
  return std::move(finding).With("total_bytes", total).With("used_bytes", used);
}

Finding LockedMemory(const Node& node) {
  constexpr char kName[] = "locked-memory";
  const auto limit = LimitOf(node, "self", "Max locked memory");
  if (!limit.has_value()) return Fine(kName, "not known");
  const auto text = [](int64_t bytes) { return bytes < 0 ? std::string("none") : Size(bytes); };
  return Fine(kName, "soft limit " + text(limit->soft) + ", hard limit " + text(limit->hard))
      .With("soft_bytes", limit->soft)
      .With("hard_bytes", limit->hard);
}

// "--pool_dir=DIR" or "--pool_dir DIR" of a daemon's command line; empty: without.
std::string PoolDir(const Node& node, const std::string& pid) {
  std::vector<std::string> words =
      SplitAt(node.Read("/proc/" + pid + "/cmdline").value_or(""), '\0');
  for (size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    std::replace(word.begin(), word.begin() + static_cast<long>(std::min<size_t>(word.size(), 10)),
                 '-', '_');
    if (word.rfind("__pool_dir=", 0) == 0) return word.substr(11);
    if (word == "__pool_dir" && i + 1 < words.size()) return words[i + 1];
  }
  return "";
}

// Bytes of a tmpfs' "size=69206016k"; -1: unknown.
int64_t SizeOf(const Mount& mount) {
  const auto size = mount.options.find("size");
  if (size == mount.options.end()) return -1;
  char* unit = nullptr;
  const int64_t number = std::strtoll(size->second.c_str(), &unit, 10);
  return *unit == 'k' ? number * 1024 : *unit == '\0' ? number : -1;
}

Finding PoolFolder(const Node& node, const std::vector<DaemonSurvey>& daemons) {
  constexpr char kName[] = "pool-folder";
  std::string folder = node.Exists(kPoolFolder) ? kPoolFolder : "";
  std::string pid = "self";
  int64_t pools = 0;
  int64_t users = 0;
  for (const DaemonSurvey& daemon : daemons) {
    const std::string used =
        daemon.pid > 0 ? PoolDir(node, std::to_string(daemon.pid)) : std::string();
    if (used.empty() || !daemon.usage.has_value()) continue;
    if (users > 0 && used != folder) continue;  // the first daemon's, and those that share it
    if (users == 0) pid = std::to_string(daemon.pid);
    folder = used;
    pools += daemon.usage->host_pool().budget_bytes();
    ++users;
  }
  if (folder.empty()) return Fine(kName, "no daemon has one");
  const auto mount = MountOf(node, pid, folder);
  if (!mount.has_value()) return Fine(kName, folder + "; its file system is not known");
  if (mount->type != "tmpfs") {
    const std::string what = folder + " is on " + mount->type;
    constexpr char kRemedy[] =
        "Mount a tmpfs there.\n$ systemctl enable --now 'run-torpor\\x2dpool.mount'";
    return users > 0 ? Problem(kName, what, kRemedy) : Warning(kName, what, kRemedy);
  }
  const int64_t size = SizeOf(*mount);
  const auto huge = mount->options.find("huge");
  std::string what = folder + (size < 0 ? "" : ", " + Size(size)) +
                     ", huge=" + (huge == mount->options.end() ? "never" : huge->second);
  if (users > 0) what += ", " + Count(users, "pool") + " of " + Size(pools);
  Finding finding = Fine(kName, what);
  if (size >= 0 && pools > size) {
    finding = Warning(kName, what + ": sleeps will be refused when it is full",
                      "Make it larger.\n$ mount -o remount,size=" +
                          std::to_string(RoundUp(Bytes(pools), GiB(1)) / GiB(1) + 2) + "G " +
                          mount->point);
  } else if (huge == mount->options.end() || huge->second == "never") {
    finding = Warning(kName, what + ": it has small pages",
                      "Mount it with huge pages, before the daemon starts.\n"
                      "$ mount -o remount,huge=always " +
                          mount->point);
  }
  return std::move(finding).With("size_bytes", size).With("budget_bytes", pools);
}

}  // namespace

Findings CheckMemory(const Node& node, const GpuSurvey& gpus,
                     const std::vector<DaemonSurvey>& daemons) {
  return {HugePages(node), HostMemory(node, gpus), PoolsFit(node, daemons),  Group(node),
          Swap(node),      LockedMemory(node),     PoolFolder(node, daemons)};
}

}  // namespace torpor::ctl::doctor
