#ifndef TORPOR_DAEMON_OPEN_DRIVER_H_
#define TORPOR_DAEMON_OPEN_DRIVER_H_

#include <memory>

#include "daemon/flags.h"
#include "lib/base/status.h"
#include "lib/cuda/driver.h"

namespace torpor {

// The driver that the flags ask for. `auto` takes CUDA where an NVIDIA device is, usable or not, so
// that a lost GPU never turns into a healthy host device. Errors: those of the drivers;
// INVALID_ARGUMENT BAD_FLAG for a device that is none.
Result<std::unique_ptr<Driver>> OpenDriver(const Flags& flags);

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPEN_DRIVER_H_
