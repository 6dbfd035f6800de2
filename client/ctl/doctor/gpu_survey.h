#ifndef TORPOR_CLIENT_CTL_DOCTOR_GPU_SURVEY_H_
#define TORPOR_CLIENT_CTL_DOCTOR_GPU_SURVEY_H_

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/doctor/child.h"
#include "client/ctl/doctor/node.h"
#include "lib/base/clock.h"
#include "lib/cuda/probe.h"

namespace torpor::ctl::doctor {

// What the NVIDIA driver's libraries answered.
struct GpuSurvey {
  // False: only whether libcuda can be loaded, since without device nodes it would make them.
  bool asked = false;
  Answer::End cuda_end = Answer::End::kAnswered;
  int cuda_signal = 0;
  CudaProbe cuda;
  Answer::End nvml_end = Answer::End::kAnswered;
  NvmlProbe nvml;
  Duration limit{};

  const CudaProbe::Device* Find(const std::string& uuid) const;
};

// Asks both libraries, each in a process of its own. Not thread-safe.
class GpuQuestions {
 public:
  explicit GpuQuestions(const Node& node);
  // Once. `limit` as it is to be told.
  GpuSurvey Await(TimePoint deadline, Duration limit);

 private:
  bool asked_;
  Child cuda_;
  std::optional<Child> nvml_;
};

// As lines of text, for the way out of the child process.
std::string Encode(const CudaProbe& probe);
std::string Encode(const NvmlProbe& probe);
CudaProbe DecodeCuda(const std::string& text);
NvmlProbe DecodeNvml(const std::string& text);

// GPUs of NVIDIA, as the kernel has them.
struct PciGpu {
  std::string address;  // "0000:19:00.0"
  std::string driver;   // "nvidia", "vfio-pci"; empty: none
};
std::vector<PciGpu> PciGpus(const Node& node);
// Their numbers in /dev/nvidiaN, of those that NVIDIA's module has.
std::vector<int> DeviceMinors(const Node& node);
// "580.65.06"; empty: NVIDIA's module is not loaded, or not shown.
std::string ModuleVersion(const Node& node);
// Whether anything here is NVIDIA's: otherwise the machine has no GPU to serve.
bool HasNvidia(const Node& node);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_GPU_SURVEY_H_
