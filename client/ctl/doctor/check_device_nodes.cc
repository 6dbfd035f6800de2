// /dev/nvidia*.

#include "client/ctl/doctor/checks.h"

namespace torpor::ctl::doctor {
namespace {

Finding Nodes(const Node& node) {
  constexpr char kName[] = "device-nodes";
  if (!HasNvidia(node)) return Fine(kName, "none, as there is no GPU");
  const std::vector<int> minors = DeviceMinors(node);
  std::vector<std::string> missing;
  for (const char* path : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    if (!node.Exists(path)) missing.emplace_back(path);
  }
  int64_t there = 0;
  std::vector<std::string> without;
  for (const int minor : minors) {
    const std::string path = "/dev/nvidia" + std::to_string(minor);
    if (node.Exists(path)) {
      ++there;
    } else {
      without.push_back(path);
    }
  }
  const auto gpus = static_cast<int64_t>(minors.size());
  const bool none = there == 0 && gpus > 0;
  if (none) missing.insert(missing.end(), without.begin(), without.end());
  if (!missing.empty()) {
    return Problem(kName, "missing: " + Listing(missing),
                   InContainer(node)
                       ? "Start the container through the NVIDIA container toolkit, with "
                         "NVIDIA_VISIBLE_DEVICES or a claim for a GPU.\n"
                         "$ docker run --gpus all ..."
                       : "Have them made, which needs root; the package's torpor-nvidia.service "
                         "does it at each boot.\n$ nvidia-modprobe -c 0 -u")
        .With("gpus", gpus)
        .With("gpu_nodes", there);
  }
  if (!without.empty() && !InContainer(node)) {
    return Warning(kName,
                   std::to_string(there) + " of " + Count(gpus, "GPU") +
                       " have nodes; missing: " + Listing(without),
                   "Have them made: the number is the GPU's.\n$ nvidia-modprobe -c 0")
        .With("gpus", gpus)
        .With("gpu_nodes", there);
  }
  return Fine(kName, "nvidiactl, nvidia-uvm, and those of " + std::to_string(there) + " of " +
                         Count(gpus, "GPU"))
      .With("gpus", gpus)
      .With("gpu_nodes", there);
}

Finding Permissions(const Node& node) {
  constexpr char kName[] = "device-permissions";
  std::vector<std::string> paths;
  for (const char* path : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) paths.emplace_back(path);
  for (const int minor : DeviceMinors(node)) paths.push_back("/dev/nvidia" + std::to_string(minor));
  std::vector<std::string> refused;
  struct stat first {};
  int64_t there = 0;
  for (const std::string& path : paths) {
    const auto info = node.Stat(path);
    if (!info.has_value()) continue;
    ++there;
    if (node.MayReadWrite(*info)) continue;
    if (refused.empty()) first = *info;
    refused.push_back(path);
  }
  if (there == 0) return Fine(kName, "no nodes to look at");
  const std::string user = UserName(node.user().uid);
  if (refused.empty()) {
    return Fine(kName, user + " may read and write all " + std::to_string(there))
        .With("nodes", there);
  }
  const bool group_may = (first.st_mode & 0060) == 0060;
  return Problem(kName,
                 user + " may not read and write " + Listing(refused) + " (mode " +
                     ModeText(first.st_mode) + ", " + UserName(first.st_uid) + ":" +
                     GroupName(first.st_gid) + ")",
                 group_may ? "Join the group, and log in again.\n$ adduser " + user + " " +
                                 GroupName(first.st_gid)
                           : "Give the module a mode that lets users in, and load it again.\n"
                             "$ echo options nvidia NVreg_DeviceFileMode=0666 > "
                             "/etc/modprobe.d/nvidia-mode.conf")
      .With("nodes", there)
      .With("refused_nodes", static_cast<int64_t>(refused.size()));
}

}  // namespace

Findings CheckDeviceNodes(const Node& node) { return {Nodes(node), Permissions(node)}; }

}  // namespace torpor::ctl::doctor
