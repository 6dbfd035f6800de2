#include <dlfcn.h>

#include "lib/cuda/probe.h"

namespace torpor {
namespace {

// From NVIDIA's documentation of the library.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct Functions {
  int (*init)();
  int (*shutdown)();
  const char* (*error_string)(int error);
  int (*driver_version)(char* version, unsigned length);
  int (*count)(unsigned* count);
  int (*by_index)(unsigned index, void** device);
  int (*uuid)(void* device, char* uuid, unsigned length);
  int (*mig_mode)(void* device, unsigned* current, unsigned* pending);
  int (*memory)(void* device, NvmlMemory* memory);
};

template <typename Function>
void Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

NvmlProbe::Gpu Describe(const Functions& nvml, void* device) {
  NvmlProbe::Gpu gpu;
  char uuid[96] = {};
  if (nvml.uuid != nullptr && nvml.uuid(device, uuid, sizeof uuid - 1) == 0) gpu.uuid = uuid;
  unsigned current = 0;
  unsigned pending = 0;
  if (nvml.mig_mode != nullptr && nvml.mig_mode(device, &current, &pending) == 0) {
    gpu.mig_mode = static_cast<int>(current);
    gpu.pending_mig_mode = static_cast<int>(pending);
  }
  NvmlMemory memory{};
  if (nvml.memory != nullptr && nvml.memory(device, &memory) == 0) {
    gpu.total_bytes = static_cast<int64_t>(memory.total);
    gpu.used_bytes = static_cast<int64_t>(memory.used);
  }
  return gpu;
}

}  // namespace

NvmlProbe ProbeNvml() {
  NvmlProbe probe;
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = ::dlerror();
    probe.error = error != nullptr ? error : "libnvidia-ml.so.1 cannot be loaded";
    return probe;
  }
  Functions nvml{};
  Find(library, "nvmlInit_v2", nvml.init);
  Find(library, "nvmlShutdown", nvml.shutdown);
  Find(library, "nvmlErrorString", nvml.error_string);
  Find(library, "nvmlSystemGetDriverVersion", nvml.driver_version);
  Find(library, "nvmlDeviceGetCount_v2", nvml.count);
  Find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.by_index);
  Find(library, "nvmlDeviceGetUUID", nvml.uuid);
  Find(library, "nvmlDeviceGetMigMode", nvml.mig_mode);
  Find(library, "nvmlDeviceGetMemoryInfo", nvml.memory);
  if (nvml.init == nullptr || nvml.count == nullptr || nvml.by_index == nullptr) {
    probe.error = "libnvidia-ml.so.1 has not the functions that are needed";
    return probe;
  }
  if (const int error = nvml.init(); error != 0) {
    const char* const text = nvml.error_string != nullptr ? nvml.error_string(error) : nullptr;
    probe.error = text != nullptr ? text : "nvmlInit: error " + std::to_string(error);
    return probe;
  }
  char version[96] = {};
  if (nvml.driver_version != nullptr && nvml.driver_version(version, sizeof version - 1) == 0) {
    probe.driver_version = version;
  }
  unsigned count = 0;
  if (nvml.count(&count) != 0) count = 0;
  for (unsigned index = 0; index < count; ++index) {
    void* device = nullptr;
    if (nvml.by_index(index, &device) == 0) probe.gpus.push_back(Describe(nvml, device));
  }
  if (nvml.shutdown != nullptr) nvml.shutdown();
  return probe;
}

}  // namespace torpor
