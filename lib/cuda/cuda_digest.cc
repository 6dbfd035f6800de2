#include "lib/cuda/cuda_digest.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "lib/cuda/digest.h"
#include "lib/cuda/digest_kernel.h"
#include "lib/cuda/driver_error.h"

namespace torpor {

Status CudaDigest::Load() {
  char log[1024] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log - 1)};
  Status loaded = api_.Translate(api_.ModuleLoadDataEx(&module_, kDigestPtx, 2, options, values),
                                 "cuModuleLoadDataEx");
  if (!loaded.ok()) {
    if (loaded.reason() == "DEVICE_OUT_OF_MEMORY") return loaded;
    return DriverNotSupported("the kernel for digests cannot be loaded: " + loaded.message() +
                              (log[0] != '\0' ? ": " + std::string(log) : ""));
  }
  Status found = api_.Translate(api_.ModuleGetFunction(&function_, module_, kDigestFunction),
                                "cuModuleGetFunction");
  if (found.ok()) return found;
  api_.ModuleUnload(module_);
  module_ = nullptr;
  if (found.reason() == "DEVICE_OUT_OF_MEMORY") return found;
  return DriverNotSupported("the kernel for digests is not found: " + found.message());
}

Result<CUfunction> CudaDigest::Function() {
  MutexLock lock(mutex_);
  if (!error_.ok()) return error_;
  if (function_ == nullptr) {
    const Status status = Load();
    if (status.reason() == "DRIVER_NOT_SUPPORTED") error_ = status;
    if (!status.ok()) return status;
  }
  return function_;
}

Status CudaDigest::WarmUp() {
  TORPOR_RETURN_IF_ERROR(Launch(nullptr, 0, DeviceAddress(), Bytes(0), Bytes(0)));
  return api_.Translate(api_.CtxSynchronize(), "cuCtxSynchronize");
}

Status CudaDigest::Launch(CUstream stream, CUdeviceptr to, DeviceAddress from, Bytes size,
                          Bytes position) {
  TORPOR_ASSIGN_OR_RETURN(const CUfunction function, Function());
  CUdeviceptr data = from.value();
  uint64_t first = position.size() / 16;
  uint64_t words = size.size() / 16;
  void* parameters[] = {&data, &first, &words, &to};
  const auto blocks = static_cast<unsigned>(std::max<int64_t>(1, DigestParts(size, position)));
  return api_.Translate(api_.LaunchKernel(function, blocks, 1, 1, kDigestThreads, 1, 1, 0, stream,
                                          parameters, nullptr),
                        "cuLaunchKernel", size);
}

void CudaDigest::Unload() {
  MutexLock lock(mutex_);
  if (module_ != nullptr) api_.ModuleUnload(module_);
  module_ = nullptr;
  function_ = nullptr;
}

}  // namespace torpor
