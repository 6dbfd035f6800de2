#include "client/ctl/doctor/check_daemon_process.h"

#include <algorithm>
#include <cstdlib>

#include "client/ctl/doctor/cgroup.h"
#include "client/ctl/doctor/checks.h"
#include "daemon/pool/cpus.h"
#include "lib/base/units.h"

namespace torpor::ctl::doctor {
namespace {

std::string Size(int64_t bytes) { return FormatBytes(Bytes(bytes)); }

Finding Descriptors(const Node& node, const std::string& pid) {
  constexpr char kName[] = "daemon-descriptors";
  const auto limit = LimitOf(node, pid, "Max open files");
  const auto used = static_cast<int64_t>(node.List("/proc/" + pid + "/fd").size());
  if (!limit.has_value() || used == 0) return Fine(kName, "not known: that needs root");
  const std::string what = std::to_string(used) + " of " +
                           (limit->soft < 0 ? "any number" : std::to_string(limit->soft)) +
                           " in use";
  Finding finding = Fine(kName, what);
  constexpr char kRemedy[] =
      "Raise the hard limit of what starts the daemon (systemd: LimitNOFILE=, also that of "
      "containerd or dockerd), then restart it.\n$ ulimit -Hn 1048576";
  if (limit->soft >= 0 && used > limit->soft - std::max<int64_t>(64, limit->soft / 10)) {
    finding = Problem(kName, what + ": few are left", kRemedy);
  } else if (limit->soft >= 0 && limit->soft < kFewDescriptors) {
    finding = Warning(kName, what + ": few for many segments", kRemedy);
  }
  return std::move(finding).With("open_descriptors", used).With("descriptor_limit", limit->soft);
}

Finding Memory(const Node& node, const std::string& pid, const DaemonSurvey& daemon) {
  constexpr char kName[] = "daemon-memory";
  if (!node.Exists("/proc/" + pid + "/cgroup")) return Fine(kName, "not known: no /proc of it");
  const auto limit = MemoryLimit(node, pid);
  if (!limit.has_value()) return Fine(kName, "no limit of its cgroup");
  const v1::HostPoolUsage& pool = daemon.usage->host_pool();
  const int64_t wanted = std::max<int64_t>(pool.budget_bytes() - pool.pinned_bytes(), 0);
  const std::string what = Size(limit->left()) + " left of " + Size(limit->limit) + ", and " +
                           Size(wanted) + " of the pool not pinned yet";
  Finding finding = Fine(kName, what);
  if (wanted > limit->left()) {
    finding = Warning(kName, what,
                      "Raise the limit, to the pools' size and 1 GiB for each daemon, or give it a "
                      "smaller pool: --host_pool.\n$ cat " +
                          limit->file);
  }
  return std::move(finding)
      .With("limit_bytes", limit->limit)
      .With("left_bytes", limit->left())
      .With("unpinned_bytes", wanted);
}

Finding Cpus(const Node& node, const std::string& pid, const CudaProbe::Device* device) {
  constexpr char kName[] = "daemon-cpus";
  const std::string status = "/proc/" + pid + "/status";
  const auto cpus = node.Value(status, "Cpus_allowed_list:");
  if (!cpus.has_value()) return Fine(kName, "not known: no /proc of it");
  const int numa = device == nullptr ? -1 : NumaNodeOf(node, device->pci_address);
  if (numa < 0) return Fine(kName, "CPUs " + *cpus + "; the device has no NUMA node");
  const std::string number = std::to_string(numa);
  const std::string here =
      node.Line("/sys/devices/system/node/node" + number + "/cpulist").value_or("");
  const std::string mems = node.Value(status, "Mems_allowed_list:").value_or("");
  const bool cpus_fit = ShareCpus(*cpus, here);
  const bool mems_fit = ShareCpus(mems, number);
  const std::string what = "CPUs " + *cpus + ", memory of nodes " + mems + "; the GPU is on node " +
                           number + " (CPUs " + here + ")";
  Finding finding = Fine(kName, what);
  if (!cpus_fit || !mems_fit) {
    finding = Warning(kName, what,
                      "Let the daemon run on the GPU's node (systemd: CPUAffinity=, AllowedCPUs=, "
                      "AllowedMemoryNodes=; Kubernetes: the topology manager), and restart it.\n"
                      "$ taskset --all-tasks --cpu-list --pid " +
                          here + " " + pid);
  }
  return std::move(finding).With("numa_node", numa);
}

Finding Environment(const Node& node, const std::string& pid) {
  constexpr char kName[] = "daemon-environment";
  const auto text = node.Read("/proc/" + pid + "/environ");
  if (!text.has_value()) return Fine(kName, "not known: that needs root, or its user");
  std::vector<std::string> set;
  std::vector<std::string> bad;
  for (const std::string& entry : SplitAt(*text, '\0')) {
    const std::string name = entry.substr(0, entry.find('='));
    const auto begins = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
    if (begins("CUDA_MPS_") || begins("CUDA_INJECTION64_") || name == "LD_PRELOAD" ||
        entry == "CUDA_LAUNCH_BLOCKING=1") {
      bad.push_back(name);
    } else if (begins("CUDA_") || name == "NVIDIA_VISIBLE_DEVICES") {
      set.push_back(entry);
    }
  }
  if (!bad.empty()) {
    return Warning(kName, "has " + Listing(bad), "Start the daemon without it.")
        .With("variables", static_cast<int64_t>(bad.size()));
  }
  return Fine(kName, set.empty() ? "nothing of CUDA's" : Listing(set));
}

}  // namespace

std::optional<ProcessLimit> LimitOf(const Node& node, const std::string& pid,
                                    const std::string& name) {
  const auto row = node.Value("/proc/" + pid + "/limits", name);
  const std::vector<std::string> words = SplitWords(row.value_or(""));
  if (words.size() < 2) return std::nullopt;
  const auto number = [](const std::string& word) {
    return word == "unlimited" ? -1 : std::strtoll(word.c_str(), nullptr, 10);
  };
  return ProcessLimit{number(words[0]), number(words[1])};
}

int NumaNodeOf(const Node& node, const std::string& pci_address) {
  const auto number = node.Number("/sys/bus/pci/devices/" + pci_address + "/numa_node");
  return static_cast<int>(number.value_or(-1));
}

bool ShareCpus(const std::string& a, const std::string& b) {
  const std::vector<int> left = ParseCpuList(a);
  const std::vector<int> right = ParseCpuList(b);
  if (left.empty() || right.empty()) return true;
  return std::any_of(left.begin(), left.end(),
                     [&](int cpu) { return std::binary_search(right.begin(), right.end(), cpu); });
}

Findings CheckDaemonProcess(const Node& node, const DaemonSurvey& daemon, const GpuSurvey& gpus) {
  const std::string pid = std::to_string(daemon.pid);
  if (daemon.pid == 0) {
    Findings findings;
    for (const char* name :
         {"daemon-descriptors", "daemon-memory", "daemon-cpus", "daemon-environment"}) {
      findings.push_back(Fine(name, "not known: it is in another pid namespace"));
    }
    return findings;
  }
  Findings findings = {Descriptors(node, pid)};
  if (daemon.usage.has_value()) findings.push_back(Memory(node, pid, daemon));
  findings.push_back(Cpus(node, pid, gpus.Find(daemon.device)));
  findings.push_back(Environment(node, pid));
  return findings;
}

}  // namespace torpor::ctl::doctor
