#include "lib/cuda/nvml.h"

#include <dlfcn.h>

namespace torpor {
namespace {

// From NVIDIA's documentation of the library.
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
using NvmlInit = int();
using NvmlShutdown = int();
using NvmlDeviceGetHandleByUuid = int(const char* uuid, void** device);
using NvmlDeviceGetMemoryInfo = int(void* device, NvmlMemory* memory);

template <typename Function>
Function* Find(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

Nvml::Nvml(const std::string& uuid) {
  library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  auto* const init = Find<NvmlInit>(library_, "nvmlInit_v2");
  auto* const get = Find<NvmlDeviceGetHandleByUuid>(library_, "nvmlDeviceGetHandleByUUID");
  if (init == nullptr || init() != 0) {
    ::dlclose(library_);
    library_ = nullptr;
    return;
  }
  if (get == nullptr || get(uuid.c_str(), &device_) != 0) device_ = nullptr;
}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  if (auto* const shutdown = Find<NvmlShutdown>(library_, "nvmlShutdown")) shutdown();
  ::dlclose(library_);
}

Bytes Nvml::UsedMemory() const {
  if (device_ == nullptr) return Bytes(-1);
  auto* const get = Find<NvmlDeviceGetMemoryInfo>(library_, "nvmlDeviceGetMemoryInfo");
  NvmlMemory memory{};
  if (get == nullptr || get(device_, &memory) != 0) return Bytes(-1);
  return Bytes(static_cast<int64_t>(memory.used));
}

}  // namespace torpor
