#ifndef TORPOR_LIB_CUDA_CUDA_API_H_
#define TORPOR_LIB_CUDA_CUDA_API_H_

#include <cuda.h>
#include <cudaTypedefs.h>

#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// Functions of libcuda.so.1 with the version of their prototype: what cuGetProcAddress is asked
// for.
#define TORPOR_CUDA_FUNCTIONS(F)         \
  F(CtxPopCurrent, 4000)                 \
  F(CtxPushCurrent, 4000)                \
  F(CtxSetLimit, 3010)                   \
  F(CtxSynchronize, 2000)                \
  F(DeviceGet, 2000)                     \
  F(DeviceGetAttribute, 2000)            \
  F(DeviceGetCount, 2000)                \
  F(DeviceGetName, 2000)                 \
  F(DeviceGetPCIBusId, 4010)             \
  F(DeviceGetUuid, 11040)                \
  F(DevicePrimaryCtxGetState, 7000)      \
  F(DevicePrimaryCtxRelease, 11000)      \
  F(DevicePrimaryCtxRetain, 7000)        \
  F(DevicePrimaryCtxSetFlags, 11000)     \
  F(DeviceTotalMem, 3020)                \
  F(EventCreate, 2000)                   \
  F(EventDestroy, 4000)                  \
  F(EventRecord, 2000)                   \
  F(EventSynchronize, 2000)              \
  F(GetErrorName, 6000)                  \
  F(GetErrorString, 6000)                \
  F(Init, 2000)                          \
  F(LaunchKernel, 4000)                  \
  F(MemAddressFree, 10020)               \
  F(MemAddressReserve, 10020)            \
  F(MemCreate, 10020)                    \
  F(MemExportToShareableHandle, 10020)   \
  F(MemGetAllocationGranularity, 10020)  \
  F(MemGetInfo, 3020)                    \
  F(MemHostGetDevicePointer, 3020)       \
  F(MemHostRegister, 6050)               \
  F(MemHostUnregister, 4000)             \
  F(MemImportFromShareableHandle, 10020) \
  F(MemMap, 10020)                       \
  F(MemRelease, 10020)                   \
  F(MemSetAccess, 10020)                 \
  F(MemUnmap, 10020)                     \
  F(MemcpyDtoHAsync, 3020)               \
  F(MemcpyHtoDAsync, 3020)               \
  F(MemsetD8Async, 3020)                 \
  F(ModuleGetFunction, 2000)             \
  F(ModuleLoadDataEx, 2010)              \
  F(ModuleUnload, 2000)                  \
  F(StreamCreate, 2000)                  \
  F(StreamDestroy, 4000)                 \
  F(ThreadExchangeStreamCaptureMode, 10010)

struct CudaApi {
#define TORPOR_CUDA_MEMBER(name, version) PFN_cu##name##_v##version name = nullptr;
  TORPOR_CUDA_FUNCTIONS(TORPOR_CUDA_MEMBER)
#undef TORPOR_CUDA_MEMBER

  // Loads libcuda.so.1 at the first call; it stays. UNAVAILABLE CUDA_LIBRARY_MISSING,
  // UNIMPLEMENTED CUDA_DRIVER_TOO_OLD. Thread-safe.
  static Result<const CudaApi*> Load();

  // The translator from CUresult. `call` is the function's name; `size` what it was asked for.
  Status Translate(CUresult result, const char* call, Bytes size = Bytes(0)) const;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_CUDA_API_H_
