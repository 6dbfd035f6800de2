// The NVIDIA driver: its module, its libraries, and the devices that they show.

#include <algorithm>

#include "client/ctl/doctor/checks.h"
#include "lib/base/units.h"
#include "lib/cli/flag_set.h"

namespace torpor::ctl::doctor {
namespace {

constexpr char kNoGpu[] = "not looked at: there is no GPU";

Finding KernelDriver(const Node& node, const GpuSurvey& gpus) {
  constexpr char kName[] = "kernel-driver";
  const std::string version = ModuleVersion(node);
  const std::vector<PciGpu> pci = PciGpus(node);
  const auto minors = static_cast<int64_t>(DeviceMinors(node).size());
  const auto seen = static_cast<int64_t>(pci.size());
  if (!version.empty()) {
    if (minors == 0 && seen > 0 && gpus.cuda.devices.empty()) {
      return Problem(kName,
                     "module " + version + " has none of the " + Count(seen, "GPU") +
                         " on the PCI bus (" + pci.front().address + ": " +
                         (pci.front().driver.empty() ? "no driver" : pci.front().driver) + ")",
                     "Bind the GPU to the driver nvidia; the kernel's log says why it is not.\n"
                     "$ dmesg | grep -i nvrm")
          .With("gpus", 0)
          .With("pci_gpus", seen);
    }
    return Fine(kName, "NVIDIA's module " + version + ", " + Count(minors, "GPU"))
        .With("gpus", minors);
  }
  if (!gpus.cuda.devices.empty()) {
    return Fine(kName, "/proc does not show NVIDIA's module, but CUDA has its devices");
  }
  if (HasNvidia(node)) {
    return Problem(kName,
                   pci.empty() ? "/dev/nvidiactl is there, and NVIDIA's module is not loaded"
                               : Count(seen, "NVIDIA GPU") + " on the PCI bus (" +
                                     pci.front().address + ", driver: " +
                                     (pci.front().driver.empty() ? "none" : pci.front().driver) +
                                     "), and NVIDIA's module is not loaded",
                   "Install NVIDIA's driver, and load it.\n$ modprobe nvidia")
        .With("pci_gpus", seen);
  }
  return Warning(kName, "no NVIDIA module, and no NVIDIA GPU on the PCI bus",
                 "For development and tests nothing: torpord --driver=auto serves host memory "
                 "here. Otherwise give the machine, virtual machine or container a GPU.")
      .With("pci_gpus", 0);
}

// "580.65.06" of "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"; empty if there is none.
std::string LibraryVersion(const std::string& library) {
  constexpr char kName[] = "libcuda.so.";
  const size_t at = library.rfind(kName);
  const std::string rest = at == std::string::npos ? "" : library.substr(at + sizeof kName - 1);
  return rest.find('.') == std::string::npos ? "" : rest;
}

std::string CudaVersion(int version) {
  return version <= 0 ? "of unknown version"
                      : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Finding CudaLibrary(const Node& node, const GpuSurvey& gpus) {
  constexpr char kName[] = "cuda-library";
  if (gpus.cuda_end != Answer::End::kAnswered) {
    return Warning(kName, "not known: the process that loaded it gave no answer",
                   "See cuda-devices.");
  }
  const CudaProbe& cuda = gpus.cuda;
  if (cuda.library.empty()) {
    if (!HasNvidia(node)) return Fine(kName, "not there, and not needed without a GPU");
    return Problem(kName, cuda.status.message(),
                   InContainer(node)
                       ? "Start the container through the NVIDIA container toolkit, with "
                         "NVIDIA_DRIVER_CAPABILITIES=compute,utility."
                       : "Install the driver's libraries, of the same version as its module "
                         "(Debian: libcuda1), or put their folder into LD_LIBRARY_PATH.");
  }
  if (cuda.status.reason() == "CUDA_DRIVER_TOO_OLD") {
    return Problem(kName,
                   cuda.library + ": CUDA " + CudaVersion(cuda.version) +
                       ", too old: " + cuda.status.message(),
                   "Install a driver of release 470 or newer.")
        .With("cuda_version", cuda.version);
  }
  const std::string module = ModuleVersion(node);
  const std::string library = LibraryVersion(cuda.library);
  if (cuda.status.reason() == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") {
    return Problem(kName, "library " + library + " and module " + module + " do not go together",
                   "The driver was upgraded under the running module: reboot, or end all that "
                   "uses the GPU and load the new module.")
        .With("cuda_version", cuda.version);
  }
  return Fine(kName, cuda.library + ", CUDA " + CudaVersion(cuda.version))
      .With("cuda_version", cuda.version);
}

std::string Remedy(const Node& node, const std::string& reason) {
  if (reason == "CUDA_ERROR_SYSTEM_NOT_READY") {
    return "GPUs that NVSwitch connects need the fabric manager, of the driver's version.\n"
           "$ systemctl enable --now nvidia-fabricmanager";
  }
  if (reason == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") return "See cuda-library.";
  if (reason == "CUDA_ERROR_NO_DEVICE") {
    const auto visible = node.Env("CUDA_VISIBLE_DEVICES");
    if (visible.has_value()) {
      return "CUDA_VISIBLE_DEVICES is \"" + *visible +
             "\" here: leave it away.\n"
             "$ env -u CUDA_VISIBLE_DEVICES torporctl doctor";
    }
    if (InContainer(node)) return "Give the container a GPU: NVIDIA_VISIBLE_DEVICES, or a claim.";
  }
  return "The kernel's log has more: a GPU that was lost (Xid 79), or a device that this user or "
         "cgroup may not open.\n$ dmesg | grep -i -e nvrm -e xid";
}

Finding CudaDevices(const Node& node, const GpuSurvey& gpus) {
  constexpr char kName[] = "cuda-devices";
  if (!HasNvidia(node)) return Fine(kName, kNoGpu);
  const std::string limit = FormatDuration(gpus.limit);
  if (gpus.cuda_end == Answer::End::kSilent) {
    return Problem(kName, "cuInit did not answer in " + limit,
                   "The driver hangs: its log says why. The GPU, or the machine, may have to be "
                   "reset.\n$ dmesg | grep -i -e nvrm -e xid");
  }
  if (gpus.cuda_end == Answer::End::kDied) {
    return Problem(kName, "libcuda ended its process by signal " + std::to_string(gpus.cuda_signal),
                   "Install the driver anew, module and libraries of one version.")
        .With("signal", gpus.cuda_signal);
  }
  if (!gpus.asked) {
    return Warning(kName,
                   "not asked: without its device nodes libcuda would make them, and this "
                   "changes nothing",
                   "See device-nodes.");
  }
  const CudaProbe& cuda = gpus.cuda;
  const auto count = static_cast<int64_t>(cuda.devices.size());
  if (!cuda.status.ok()) {
    return Problem(kName, cuda.status.message(), Remedy(node, cuda.status.reason()))
        .With("devices", count);
  }
  if (count == 0) {
    return Problem(kName, "CUDA shows no device", Remedy(node, "CUDA_ERROR_NO_DEVICE"))
        .With("devices", 0);
  }
  std::vector<std::string> uuids;
  for (const CudaProbe::Device& device : cuda.devices) uuids.push_back(device.uuid);
  return Fine(kName, Count(count, "device") + ": " + Listing(uuids, 2)).With("devices", count);
}

Finding Features(const CudaProbe::Device& device) {
  constexpr char kName[] = "gpu-features";
  const std::string capability =
      std::to_string(device.capability / 10) + "." + std::to_string(device.capability % 10);
  const std::string what = device.name + " at " + device.pci_address + ", " +
                           FormatBytes(Bytes(device.total_bytes)) + ", compute capability " +
                           capability;
  Finding finding = Fine(kName, what + ": virtual memory and descriptors");
  if (!device.virtual_memory || !device.descriptors) {
    finding = Problem(kName,
                      what + ": no " +
                          (device.virtual_memory ? "descriptors of its memory (POSIX)"
                                                 : "virtual memory management"),
                      "Torpor cannot serve this device. In a virtual machine, pass the whole GPU "
                      "through, or have its vGPU profile allow unified memory.");
  } else if (device.capability < 70) {
    finding = Warning(kName, what + ": digests need 7.0",
                      "Each sleep copies all weights, also those that have not changed.");
  }
  return std::move(finding)
      .With("total_bytes", device.total_bytes)
      .With("compute_capability", device.capability);
}

Finding ComputeMode(const CudaProbe::Device& device) {
  constexpr char kName[] = "compute-mode";
  if (device.compute_mode == 0) return Fine(kName, "default").With("compute_mode", 0);
  return Problem(kName,
                 device.compute_mode == 2
                     ? "prohibited: no process gets a context"
                     : "exclusive to one process: with the daemon's context, no worker gets one",
                 "Set it to default.\n$ nvidia-smi -i " + device.uuid + " -c DEFAULT")
      .With("compute_mode", device.compute_mode);
}

bool IsMig(const CudaProbe::Device& device) { return device.uuid.compare(0, 4, "MIG-") == 0; }

Findings Mig(const Node& node, const GpuSurvey& gpus) {
  constexpr char kName[] = "mig";
  if (!HasNvidia(node)) return {Fine(kName, kNoGpu)};
  if (!gpus.asked) return {Fine(kName, "not asked: see device-nodes")};
  if (gpus.nvml_end == Answer::End::kSilent) {
    return {Problem(kName, "NVML did not answer in " + FormatDuration(gpus.limit),
                    "The driver hangs: its log says why.\n$ dmesg | grep -i -e nvrm -e xid")};
  }
  if (!gpus.nvml.error.empty() || gpus.nvml_end != Answer::End::kAnswered) {
    return {Warning(kName,
                    "not known: " + (gpus.nvml.error.empty() ? "NVML died" : gpus.nvml.error),
                    "Install libnvidia-ml.so.1; in a container add utility to "
                    "NVIDIA_DRIVER_CAPABILITIES. Without it Usage does not know the daemon's own "
                    "context either.")};
  }
  const auto instances = std::count_if(gpus.cuda.devices.begin(), gpus.cuda.devices.end(), IsMig);
  Findings findings;
  for (const NvmlProbe::Gpu& gpu : gpus.nvml.gpus) {
    if (gpu.mig_mode != gpu.pending_mig_mode) {
      findings.push_back(Warning(
          kName,
          std::string(gpu.mig_mode == 1 ? "on" : "off") + ", and the other way after a reset",
          "End all that uses the GPU, then reset it.\n$ nvidia-smi -i " + gpu.uuid + " -r"));
    } else if (gpu.mig_mode == 1 && instances > 0) {
      findings.push_back(
          Fine(kName, "on; CUDA shows " + Count(instances, "instance") + " here: a daemon for each")
              .With("instances", instances));
    } else if (gpu.mig_mode == 1) {
      findings.push_back(Warning(kName, "on, and CUDA shows no instance here",
                                 "Make instances, or turn MIG off.\n$ nvidia-smi mig -i " +
                                     gpu.uuid + " -cgi 19 -C\n$ nvidia-smi -i " + gpu.uuid +
                                     " -mig 0")
                             .With("instances", 0));
    } else {
      continue;
    }
    findings.back().numbers["mig_mode"] = gpu.mig_mode;
    findings.back().subject = gpu.uuid;
  }
  if (findings.empty()) {
    findings.push_back(
        Fine(kName, "off on " + Count(static_cast<int64_t>(gpus.nvml.gpus.size()), "GPU")));
  }
  return findings;
}

Finding VisibleDevices(const Node& node, const GpuSurvey& gpus) {
  constexpr char kName[] = "visible-devices";
  const auto visible = node.Env("CUDA_VISIBLE_DEVICES");
  if (!visible.has_value()) return Fine(kName, "CUDA_VISIBLE_DEVICES is not set");
  const std::string is = "CUDA_VISIBLE_DEVICES is \"" + *visible + "\"";
  const bool answered = gpus.asked && gpus.cuda_end == Answer::End::kAnswered;
  std::vector<std::string> hidden;
  for (const NvmlProbe::Gpu& gpu : gpus.nvml.gpus) {
    if (answered && gpu.mig_mode != 1 && gpus.Find(gpu.uuid) == nullptr) hidden.push_back(gpu.uuid);
  }
  if (!answered) return Fine(kName, is);
  if (hidden.empty()) return Fine(kName, is + " and hides nothing");
  const auto count = static_cast<int64_t>(hidden.size());
  return Warning(kName, is + " and hides " + Listing(hidden, 2),
                 "Start daemons without it: --device names the GPU. A worker's has to show it the "
                 "GPU of its daemon.")
      .With("hidden", count);
}

Finding Mps(const Node& node) {
  constexpr char kName[] = "mps";
  const std::string folder = node.Env("CUDA_MPS_PIPE_DIRECTORY").value_or("/tmp/nvidia-mps");
  std::vector<std::string> processes;
  for (const std::string& pid : node.List("/proc")) {
    // The kernel keeps 15 letters of nvidia-cuda-mps-control and -server.
    if (node.Line("/proc/" + pid + "/comm") == "nvidia-cuda-mps") processes.push_back(pid);
  }
  const bool has_folder = node.Exists(folder);
  const auto count = static_cast<int64_t>(processes.size());
  constexpr char kStop[] =
      "Stop MPS; time slicing, which is what a GPU does without it, is right.\n"
      "$ echo quit | nvidia-cuda-mps-control";
  if (!processes.empty() && has_folder) {
    return Problem(kName,
                   "runs (pid " + Listing(processes) + "), and " + folder +
                       " makes what is started here its client",
                   kStop)
        .With("mps_processes", count);
  }
  if (!processes.empty()) {
    return Warning(kName, "runs (pid " + Listing(processes) + "), but not through " + folder, kStop)
        .With("mps_processes", count);
  }
  if (has_folder) {
    return Warning(
               kName, folder + " is there, but no MPS process is seen here",
               "If MPS does not run, in another container either, remove the folder.\n$ rm -r " +
                   folder)
        .With("mps_processes", 0);
  }
  return Fine(kName, "does not run").With("mps_processes", 0);
}

}  // namespace

Findings CheckDriver(const Node& node, const GpuSurvey& gpus) {
  Findings findings = {KernelDriver(node, gpus), CudaLibrary(node, gpus), CudaDevices(node, gpus)};
  for (const CudaProbe::Device& device : gpus.cuda.devices) {
    for (Finding finding : {Features(device), ComputeMode(device)}) {
      finding.subject = device.uuid;
      findings.push_back(std::move(finding));
    }
  }
  for (Finding& finding : Mig(node, gpus)) findings.push_back(std::move(finding));
  findings.push_back(VisibleDevices(node, gpus));
  findings.push_back(Mps(node));
  return findings;
}

}  // namespace torpor::ctl::doctor
