// Where GPUs, CPUs and memory are.

#include <cstdlib>

#include "client/ctl/doctor/check_daemon_process.h"
#include "client/ctl/doctor/checks.h"
#include "lib/base/units.h"

namespace torpor::ctl::doctor {
namespace {

constexpr char kNodes[] = "/sys/devices/system/node/";

int64_t CountNodes(const Node& node) {
  int64_t count = 0;
  for (const std::string& name : node.List(kNodes)) {
    count += name.rfind("node", 0) == 0 && node.Exists(kNodes + name + "/cpulist") ? 1 : 0;
  }
  return count;
}

Finding OfGpu(const Node& node, const CudaProbe::Device& device, int64_t nodes) {
  constexpr char kName[] = "numa";
  const int numa = NumaNodeOf(node, device.pci_address);
  if (numa < 0) {
    if (nodes <= 1) return Fine(kName, "1 node").With("nodes", nodes);
    return Warning(
               kName,
               "the kernel does not say on which of " + std::to_string(nodes) + " nodes the GPU is",
               "In a virtual machine, have its NUMA nodes shown as they are. Otherwise bind "
               "the daemon to the right CPUs by hand: CPUAffinity=.\n$ nvidia-smi topo -m")
        .With("nodes", nodes);
  }
  const std::string folder = kNodes + std::string("node") + std::to_string(numa);
  const std::string here = node.Line(folder + "/cpulist").value_or("");
  const std::string key = "Node " + std::to_string(numa) + " MemTotal:";
  const int64_t memory =
      std::strtoll(node.Value(folder + "/meminfo", key).value_or("0").c_str(), nullptr, 10) * 1024;
  const std::string mine = node.Value("/proc/self/status", "Cpus_allowed_list:").value_or("");
  const std::string what = "node " + std::to_string(numa) + " of " + std::to_string(nodes) +
                           ", CPUs " + here + ", " + FormatBytes(Bytes(memory)) + " of memory";
  Finding finding = Fine(kName, what);
  if (!ShareCpus(mine, here)) {
    finding = Warning(kName, what + "; here only CPUs " + mine + " may be used",
                      "Start its daemon and workers on CPUs of its node.\n$ taskset --cpu-list " +
                          here + " torpord --device=" + device.uuid);
  }
  return std::move(finding).With("numa_node", numa).With("nodes", nodes).With("node_bytes", memory);
}

}  // namespace

Findings CheckNuma(const Node& node, const GpuSurvey& gpus) {
  const int64_t nodes = CountNodes(node);
  if (gpus.cuda.devices.empty()) {
    return {Fine("numa", nodes == 0 ? "not known" : Count(nodes, "node")).With("nodes", nodes)};
  }
  Findings findings;
  for (const CudaProbe::Device& device : gpus.cuda.devices) {
    findings.push_back(OfGpu(node, device, nodes));
    findings.back().subject = device.uuid;
  }
  return findings;
}

}  // namespace torpor::ctl::doctor
