#ifndef TORPOR_LIB_CUDA_DRIVER_ERROR_H_
#define TORPOR_LIB_CUDA_DRIVER_ERROR_H_

#include <string>
#include <utility>

#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// The errors that every Driver reports alike.

inline Status DriverInvalidValue(std::string message) {
  return InvalidArgument("DRIVER_INVALID_VALUE", std::move(message));
}

inline Status DriverNotSupported(std::string message) {
  return Status(Code::kUnimplemented, "DRIVER_NOT_SUPPORTED", std::move(message));
}

inline Status DeviceOutOfMemory(std::string message, Bytes requested) {
  return ResourceExhausted("DEVICE_OUT_OF_MEMORY", std::move(message))
      .With("requested_bytes", requested.value());
}

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DRIVER_ERROR_H_
