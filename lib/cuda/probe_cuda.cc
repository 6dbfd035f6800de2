#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "lib/cuda/cuda_api.h"
#include "lib/cuda/cuda_device.h"
#include "lib/cuda/probe.h"

namespace torpor {
namespace {

Result<CudaProbe::Device> Describe(const CudaApi& api, int ordinal) {
  CUdevice device = 0;
  TORPOR_RETURN_IF_ERROR(api.Translate(api.DeviceGet(&device, ordinal), "cuDeviceGet"));
  CudaProbe::Device found;
  TORPOR_ASSIGN_OR_RETURN(found.uuid, CudaDeviceUuid(api, device));
  TORPOR_ASSIGN_OR_RETURN(found.name, CudaDeviceName(api, device));
  found.pci_address = CudaDevicePciAddress(api, device);
  size_t total = 0;
  TORPOR_RETURN_IF_ERROR(api.Translate(api.DeviceTotalMem(&total, device), "cuDeviceTotalMem"));
  found.total_bytes = static_cast<int64_t>(total);
  const auto ask = [&](CUdevice_attribute attribute) {
    return CudaDeviceAttribute(api, attribute, device);
  };
  TORPOR_ASSIGN_OR_RETURN(found.compute_mode, ask(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
  TORPOR_ASSIGN_OR_RETURN(const int major, ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  TORPOR_ASSIGN_OR_RETURN(const int minor, ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  found.capability = 10 * major + minor;
  TORPOR_ASSIGN_OR_RETURN(const int virtual_memory,
                          ask(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  found.virtual_memory = virtual_memory != 0;
  TORPOR_ASSIGN_OR_RETURN(const int descriptors,
                          ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  found.descriptors = descriptors != 0;
  return found;
}

}  // namespace

CudaProbe ProbeCuda(bool initialize) {
  CudaProbe probe;
  const Result<const CudaApi*> api = CudaApi::Load();
  probe.status = api.ok() ? Status::Ok() : api.status();
  // Also of a driver that is too old.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return probe;
  if (void* const function = ::dlsym(library, "cuDriverGetVersion"); function != nullptr) {
    Dl_info info{};
    if (::dladdr(function, &info) != 0 && info.dli_fname != nullptr) {
      std::error_code error;
      const auto file = std::filesystem::canonical(info.dli_fname, error);
      probe.library = error ? info.dli_fname : file.string();
    }
    reinterpret_cast<CUresult (*)(int*)>(function)(&probe.version);
  }
  ::dlclose(library);
  if (!api.ok() || !initialize) return probe;
  int count = 0;
  probe.status = (*api)->Translate((*api)->Init(0), "cuInit");
  if (probe.status.ok()) {
    probe.status = (*api)->Translate((*api)->DeviceGetCount(&count), "cuDeviceGetCount");
  }
  for (int ordinal = 0; probe.status.ok() && ordinal < count; ++ordinal) {
    Result<CudaProbe::Device> device = Describe(**api, ordinal);
    if (device.ok()) {
      probe.devices.push_back(*std::move(device));
    } else {
      probe.status = device.status();
    }
  }
  return probe;
}

}  // namespace torpor
