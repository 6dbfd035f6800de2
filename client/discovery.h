#ifndef TORPOR_CLIENT_DISCOVERY_H_
#define TORPOR_CLIENT_DISCOVERY_H_

#include <string>

#include "lib/base/status.h"

namespace torpor::client {

// The worker socket of the daemon that serves `device_uuid`,
// <runtime_dir>/<device_uuid>/worker.sock; for an empty uuid that of the only daemon there (several
// sockets are tried out).
//   UNAVAILABLE DAEMON_NOT_RUNNING, FAILED_PRECONDITION AMBIGUOUS_DAEMON: with "candidates"
Result<std::string> FindWorkerSocket(const std::string& runtime_dir,
                                     const std::string& device_uuid);

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_DISCOVERY_H_
