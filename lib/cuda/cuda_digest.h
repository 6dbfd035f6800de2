#ifndef TORPOR_LIB_CUDA_CUDA_DIGEST_H_
#define TORPOR_LIB_CUDA_CUDA_DIGEST_H_

#include <cuda.h>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/cuda_api.h"

namespace torpor {

// The kernel that digests device memory, in one context, which every call needs current.
// Thread-safe.
class CudaDigest {
 public:
  // `api` must outlive this.
  explicit CudaDigest(const CudaApi& api) : api_(api) {}
  CudaDigest(const CudaDigest&) = delete;
  CudaDigest& operator=(const CudaDigest&) = delete;

  // Queues the digest of `size` bytes at `position`; the results go to `to`, the device's address
  // of host memory. The first call has the driver compile the kernel. UNIMPLEMENTED
  // DRIVER_NOT_SUPPORTED, from then on, if the driver cannot do that; RESOURCE_EXHAUSTED
  // DEVICE_OUT_OF_MEMORY; otherwise cuLaunchKernel's errors.
  Status Launch(CUstream stream, CUdeviceptr to, DeviceAddress from, Bytes size, Bytes position);
  // Launches the kernel on nothing and waits for the context, so that all that the driver does, and
  // all memory that it takes, for a first launch lies behind. Errors as above.
  Status WarmUp();
  void Unload();

 private:
  Result<CUfunction> Function();
  Status Load() REQUIRES(mutex_);

  const CudaApi& api_;
  Mutex mutex_;  // held while the kernel is loaded
  CUmodule module_ GUARDED_BY(mutex_) = nullptr;
  CUfunction function_ GUARDED_BY(mutex_) = nullptr;
  Status error_ GUARDED_BY(mutex_);  // why it will never work
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_CUDA_DIGEST_H_
