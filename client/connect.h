#ifndef TORPOR_CLIENT_CONNECT_H_
#define TORPOR_CLIENT_CONNECT_H_

#include <memory>
#include <string>

#include "client/session.h"
#include "lib/base/status.h"

namespace torpor::client {

// What a program says about where to connect; see torpor_options in torpor.h.
struct ConnectOptions {
  Session::Options session;  // socket_path empty: found in runtime_dir
  std::string runtime_dir;   // empty: DefaultRuntimeDir
  int device = 0;            // CUDA ordinal, unless session.device_uuid is set
  std::string driver;        // "", "auto", "cuda" or "host"
};

// Opens the driver that is asked for, finds the daemon of its device and connects.
//   INVALID_ARGUMENT BAD_DRIVER
//   FAILED_PRECONDITION WRONG_DEVICE: the daemon serves a device that this process does not see
//   and what FindWorkerSocket, the driver and Session::Connect say
Result<std::unique_ptr<Session>> Connect(const ConnectOptions& options);

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_CONNECT_H_
