#ifndef TORPOR_CLIENT_CTL_REACH_H_
#define TORPOR_CLIENT_CTL_REACH_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace torpor::ctl {

// A channel to the daemon with gRPC's name `target`, for the next calls: connected, or one on which
// they fail and tell why. While the queue of a Unix socket is full it waits in turn, where gRPC
// would give up at once: at most 8 s or for `patience`, and until `stopped` says so (looked at
// every 100 ms). What it returns may not connect anew when its connection ends.
//   UNAVAILABLE SOCKET_QUEUE_FULL: until the end
//   UNAVAILABLE DAEMON_NOT_RUNNING: nobody listens at the socket any more
//   PERMISSION_DENIED ERRNO_EACCES: with "path" and the "group" that the socket is for
Result<std::shared_ptr<grpc::Channel>> Reach(const std::string& target, Duration patience,
                                             const std::function<bool()>& stopped);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_REACH_H_
