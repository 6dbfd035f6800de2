#ifndef TORPOR_LIB_CUDA_DRIVER_ERROR_H_
#define TORPOR_LIB_CUDA_DRIVER_ERROR_H_

#include <string>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/digest.h"

namespace torpor {

// The errors that every Driver reports alike.
Status DriverInvalidValue(std::string message);
Status DriverNotSupported(std::string message);
Status DeviceOutOfMemory(std::string message, Bytes requested);

// DriverInvalidValue about `call` on a range.
Status BadRange(const char* call, DeviceAddress address, Bytes size, const char* why);

// Whether a range can be mapped: aligned to the granularity, not empty, not wrapping around.
Status CheckMappable(const char* call, DeviceAddress address, Bytes size, Bytes granularity);
// Likewise for the size of an allocation or reservation.
Status CheckSize(const char* call, Bytes size, Bytes granularity);
// 0 (the granularity) or a power of two.
Status CheckAlignment(const char* call, Bytes alignment);
// Whether a range can be digested to `to`, by its numbers alone.
Status CheckDigest(const PartDigest* to, DeviceAddress from, Bytes size, Bytes position);
// Whether host memory can be registered: whole pages.
Status CheckPages(const char* call, const void* address, Bytes size);

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DRIVER_ERROR_H_
