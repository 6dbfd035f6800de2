#include "lib/cuda/cuda_api.h"

#include <dlfcn.h>

#include <string>

#include "lib/cuda/driver_error.h"

namespace torpor {
namespace {

// The one function that is looked up by name: as of CUDA 12, or as of 11.3.
class Resolver {
 public:
  explicit Resolver(void* library)
      : v12_(
            reinterpret_cast<PFN_cuGetProcAddress_v12000>(::dlsym(library, "cuGetProcAddress_v2"))),
        v11_(reinterpret_cast<PFN_cuGetProcAddress_v11030>(::dlsym(library, "cuGetProcAddress"))) {}

  void* Find(const char* name, int version) const {
    void* function = nullptr;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (v12_ != nullptr) {
      CUdriverProcAddressQueryResult found;
      result = v12_(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
    } else if (v11_ != nullptr) {
      result = v11_(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    }
    return result == CUDA_SUCCESS ? function : nullptr;
  }

 private:
  const PFN_cuGetProcAddress_v12000 v12_;
  const PFN_cuGetProcAddress_v11030 v11_;
};

Result<const CudaApi*> LoadOnce() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = ::dlerror();
    return Unavailable("CUDA_LIBRARY_MISSING",
                       std::string("the NVIDIA driver's library cannot be loaded: ") +
                           (error != nullptr ? error : "libcuda.so.1"));
  }
  const Resolver resolver(library);
  auto* const api = new CudaApi();  // as long as the library: for ever
  const char* missing = nullptr;
#define TORPOR_CUDA_RESOLVE(name, version)                                                     \
  api->name = reinterpret_cast<PFN_cu##name##_v##version>(resolver.Find("cu" #name, version)); \
  if (api->name == nullptr) missing = "cu" #name;
  TORPOR_CUDA_FUNCTIONS(TORPOR_CUDA_RESOLVE)
#undef TORPOR_CUDA_RESOLVE
  if (missing != nullptr) {
    return Status(Code::kUnimplemented, "CUDA_DRIVER_TOO_OLD",
                  std::string("the NVIDIA driver has no ") + missing);
  }
  return api;
}

}  // namespace

Result<const CudaApi*> CudaApi::Load() {
  static const auto* const api = new Result<const CudaApi*>(LoadOnce());
  return *api;
}

Status CudaApi::Translate(CUresult result, const char* call, Bytes size) const {
  if (result == CUDA_SUCCESS) return Status::Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA_ERROR_UNKNOWN";
  if (GetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  const std::string message = std::string(call) + ": " + name + ", " + text;
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return DeviceOutOfMemory(message, size);
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
      return DriverInvalidValue(message);
    case CUDA_ERROR_NOT_SUPPORTED:
      return DriverNotSupported(message);
    default:
      return Internal(name, message).With("cuda_error", static_cast<int>(result));
  }
}

}  // namespace torpor
