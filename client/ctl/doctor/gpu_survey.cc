#include "client/ctl/doctor/gpu_survey.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace torpor::ctl::doctor {
namespace {

// One line; fields are separated by tabs.
std::string Record(const std::vector<std::string>& fields) {
  std::string line;
  for (std::string field : fields) {
    std::replace_if(
        field.begin(), field.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
    line.append(line.empty() ? "" : "\t").append(field);
  }
  return line + "\n";
}

std::vector<std::vector<std::string>> Records(const std::string& text) {
  std::vector<std::vector<std::string>> records;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) records.push_back(SplitAt(line, '\t'));
  return records;
}

int64_t Number(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

bool HasNodes(const Node& node) {
  return node.Exists("/dev/nvidiactl") && node.Exists("/dev/nvidia-uvm");
}

}  // namespace

const CudaProbe::Device* GpuSurvey::Find(const std::string& uuid) const {
  for (const CudaProbe::Device& device : cuda.devices) {
    if (device.uuid == uuid) return &device;
  }
  return nullptr;
}

GpuQuestions::GpuQuestions(const Node& node)
    : asked_(HasNodes(node)),
      cuda_(Child::Start([asked = asked_] { return Encode(ProbeCuda(asked)); })) {
  if (asked_) nvml_.emplace(Child::Start([] { return Encode(ProbeNvml()); }));
}

GpuSurvey GpuQuestions::Await(TimePoint deadline, Duration limit) {
  GpuSurvey survey;
  survey.asked = asked_;
  survey.limit = limit;
  const Answer cuda = cuda_.Await(deadline);
  survey.cuda_end = cuda.end;
  survey.cuda_signal = cuda.status;
  if (cuda.end == Answer::End::kAnswered) survey.cuda = DecodeCuda(cuda.text);
  if (!nvml_.has_value()) return survey;
  const Answer nvml = nvml_->Await(deadline);
  survey.nvml_end = nvml.end;
  if (nvml.end == Answer::End::kAnswered) survey.nvml = DecodeNvml(nvml.text);
  return survey;
}

std::string Encode(const CudaProbe& probe) {
  std::string text = Record({"library", probe.library, std::to_string(probe.version)});
  if (!probe.status.ok()) {
    text += Record({"error", std::to_string(static_cast<int>(probe.status.code())),
                    probe.status.reason(), probe.status.message()});
  }
  for (const CudaProbe::Device& device : probe.devices) {
    text += Record({"device", device.uuid, device.name, device.pci_address,
                    std::to_string(device.total_bytes), std::to_string(device.compute_mode),
                    std::to_string(device.capability), device.virtual_memory ? "1" : "0",
                    device.descriptors ? "1" : "0"});
  }
  return text;
}

CudaProbe DecodeCuda(const std::string& text) {
  CudaProbe probe;
  for (const std::vector<std::string>& fields : Records(text)) {
    if (fields[0] == "library" && fields.size() == 3) {
      probe.library = fields[1];
      probe.version = static_cast<int>(Number(fields[2]));
    } else if (fields[0] == "error" && fields.size() == 4) {
      probe.status = Status(static_cast<Code>(Number(fields[1])), fields[2], fields[3]);
    } else if (fields[0] == "device" && fields.size() == 9) {
      CudaProbe::Device& device = probe.devices.emplace_back();
      device.uuid = fields[1];
      device.name = fields[2];
      device.pci_address = fields[3];
      device.total_bytes = Number(fields[4]);
      device.compute_mode = static_cast<int>(Number(fields[5]));
      device.capability = static_cast<int>(Number(fields[6]));
      device.virtual_memory = fields[7] == "1";
      device.descriptors = fields[8] == "1";
    }
  }
  return probe;
}

std::string Encode(const NvmlProbe& probe) {
  std::string text = Record({"nvml", probe.error, probe.driver_version});
  for (const NvmlProbe::Gpu& gpu : probe.gpus) {
    text +=
        Record({"gpu", gpu.uuid, std::to_string(gpu.mig_mode), std::to_string(gpu.pending_mig_mode),
                std::to_string(gpu.total_bytes), std::to_string(gpu.used_bytes)});
  }
  return text;
}

NvmlProbe DecodeNvml(const std::string& text) {
  NvmlProbe probe;
  for (const std::vector<std::string>& fields : Records(text)) {
    if (fields[0] == "nvml" && fields.size() == 3) {
      probe.error = fields[1];
      probe.driver_version = fields[2];
    } else if (fields[0] == "gpu" && fields.size() == 6) {
      NvmlProbe::Gpu& gpu = probe.gpus.emplace_back();
      gpu.uuid = fields[1];
      gpu.mig_mode = static_cast<int>(Number(fields[2]));
      gpu.pending_mig_mode = static_cast<int>(Number(fields[3]));
      gpu.total_bytes = Number(fields[4]);
      gpu.used_bytes = Number(fields[5]);
    }
  }
  return probe;
}

std::vector<PciGpu> PciGpus(const Node& node) {
  constexpr char kFolder[] = "/sys/bus/pci/devices/";
  std::vector<PciGpu> gpus;
  for (const std::string& address : node.List(kFolder)) {
    const std::string device = kFolder + address;
    // Class 03: display controllers, those without a display included.
    if (node.Line(device + "/vendor") != "0x10de") continue;
    if (node.Line(device + "/class").value_or("").compare(0, 4, "0x03") != 0) continue;
    const std::string driver = node.Target(device + "/driver").value_or("");
    gpus.push_back({address, driver.substr(driver.rfind('/') + 1)});
  }
  return gpus;
}

std::vector<int> DeviceMinors(const Node& node) {
  constexpr char kFolder[] = "/proc/driver/nvidia/gpus/";
  std::vector<int> minors;
  for (const std::string& address : node.List(kFolder)) {
    const auto minor = node.Value(kFolder + address + "/information", "Device Minor:");
    if (minor.has_value()) minors.push_back(static_cast<int>(Number(*minor)));
  }
  std::sort(minors.begin(), minors.end());
  return minors;
}

std::string ModuleVersion(const Node& node) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:09:11 UTC 2025"
  const auto line = node.Value("/proc/driver/nvidia/version", "NVRM version:");
  for (const std::string& word : SplitWords(line.value_or(""))) {
    const bool numbers = std::all_of(
        word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (numbers && word.find('.') != std::string::npos) return word;
  }
  return "";
}

bool HasNvidia(const Node& node) {
  return node.Exists("/dev/nvidiactl") || node.Exists("/proc/driver/nvidia/version") ||
         !PciGpus(node).empty();
}

}  // namespace torpor::ctl::doctor
