#ifndef TORPOR_LIB_CUDA_CUDA_DEVICE_H_
#define TORPOR_LIB_CUDA_CUDA_DEVICE_H_

#include <cuda.h>

#include <string>

#include "lib/base/status.h"
#include "lib/cuda/cuda_api.h"

namespace torpor {

// Questions about one device that need no context. Errors as CudaApi::Translate. Thread-safe.

Result<std::string> CudaDeviceName(const CudaApi& api, CUdevice device);
// As nvidia-smi prints it: "GPU-..." or "MIG-...".
Result<std::string> CudaDeviceUuid(const CudaApi& api, CUdevice device);
// As the kernel writes it, "0000:19:00.0"; empty: CUDA does not say.
std::string CudaDevicePciAddress(const CudaApi& api, CUdevice device);
Result<int> CudaDeviceAttribute(const CudaApi& api, CUdevice_attribute attribute, CUdevice device);

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_CUDA_DEVICE_H_
