#ifndef TORPOR_LIB_NET_UNIX_SOCKET_H_
#define TORPOR_LIB_NET_UNIX_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor::net {

// Who is at the other end of a Unix socket, by the kernel's word (SO_PEERCRED, as of its connect).
struct PeerCredentials {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;  // 0 when the peer lives in a pid namespace that this one cannot see
  std::vector<gid_t> groups = {};  // the supplementary ones
};

// A listening socket of `type` at `path`, with file mode `mode` and, if given, `group`. An existing
// socket file there is replaced: callers hold the lock that proves it stale. INVALID_ARGUMENT
// SOCKET_PATH_TOO_LONG beyond 107 bytes.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode,
                            std::optional<gid_t> group = std::nullopt, int type = SOCK_SEQPACKET);

// To a listener of `type`. Blocks while its queue is full, at most for `timeout`, if there is one.
//   UNAVAILABLE DAEMON_NOT_RUNNING: nothing listens at `path`
//   DEADLINE_EXCEEDED: late
Result<UniqueFd> ConnectUnix(const std::string& path,
                             std::optional<Duration> timeout = std::nullopt,
                             int type = SOCK_SEQPACKET);

// Whether some process has the socket at `path` open, of whatever type. Nobody at the other end
// notices. A socket file that a dead process has left behind is false, one that this process may
// not use is true.
bool IsSocketInUse(const std::string& path);

// Blocks; UNAVAILABLE LISTENER_CLOSED after shutdown() of the listener.
Result<UniqueFd> AcceptUnix(int listener);

Result<PeerCredentials> GetPeerCredentials(int socket);

// Sends give up with DEADLINE_EXCEEDED when the peer does not drain the socket for so long.
Status SetSendTimeout(int socket, Duration timeout);

}  // namespace torpor::net

#endif  // TORPOR_LIB_NET_UNIX_SOCKET_H_
