#include "lib/net/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace torpor::net {
namespace {

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return InvalidArgument("SOCKET_PATH_TOO_LONG", "\"" + path + "\" is no path of a Unix socket")
        .With("path_bytes", path.size())
        .With("limit_bytes", sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> NewSocket(int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "create a Unix socket");
  return fd;
}

// The supplementary groups of the peer.
Result<std::vector<gid_t>> GetPeerGroups(int socket) {
  std::vector<gid_t> groups(16);
  for (;;) {
    auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int rc = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
    if (rc != 0 && errno == ENOPROTOOPT) return std::vector<gid_t>();  // an older kernel
    // Then `size` says what it takes.
    if (rc != 0 && errno != ERANGE) return ErrnoStatus(errno, "read the peer's groups");
    groups.resize(size / sizeof(gid_t));
    if (rc == 0) return groups;
  }
}

}  // namespace

Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode, std::optional<gid_t> group,
                            int type) {
  TORPOR_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(type));
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoStatus(errno, "bind " + path);
  }
  // Nobody gets in before both are right: it does not listen yet.
  if (group.has_value() && ::chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0) {
    return ErrnoStatus(errno, "give " + path + " to group " + std::to_string(*group));
  }
  if (::chmod(path.c_str(), mode) != 0) return ErrnoStatus(errno, "chmod " + path);
  // As many as may wait: one that does not wait itself, as gRPC's, fails where the queue is full.
  if (::listen(fd.get(), SOMAXCONN) != 0) return ErrnoStatus(errno, "listen on " + path);
  return fd;
}

Result<UniqueFd> ConnectUnix(const std::string& path, std::optional<Duration> timeout, int type) {
  TORPOR_ASSIGN_OR_RETURN(const sockaddr_un address, Address(path));
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(type));
  if (timeout) TORPOR_RETURN_IF_ERROR(SetSendTimeout(fd.get(), *timeout));
  int rc = 0;
  do {
    rc = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return fd;
  if (errno == ENOENT || errno == ECONNREFUSED) {
    return Unavailable("DAEMON_NOT_RUNNING", "no daemon listens at " + path).With("path", path);
  }
  return ErrnoStatus(errno, "connect to " + path);
}

bool IsSocketInUse(const std::string& path) {
  const Result<sockaddr_un> address = Address(path);
  if (!address.ok()) return false;
  // Listeners are of other types: the kernel finds one, or none, and connects nothing.
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return true;
  const auto* name = reinterpret_cast<const sockaddr*>(&*address);
  return ::connect(fd.get(), name, sizeof *address) == 0 ||
         (errno != ENOENT && errno != ENOTDIR && errno != ECONNREFUSED);
}

Result<UniqueFd> AcceptUnix(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EINVAL || errno == EBADF) {
      return Unavailable("LISTENER_CLOSED", "the listener was shut down");
    }
    return ErrnoStatus(errno, "accept a connection");
  }
}

Result<PeerCredentials> GetPeerCredentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus(errno, "read peer credentials");
  }
  TORPOR_ASSIGN_OR_RETURN(std::vector<gid_t> groups, GetPeerGroups(socket));
  return PeerCredentials{credentials.uid, credentials.gid, credentials.pid, std::move(groups)};
}

Status SetSendTimeout(int socket, Duration timeout) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  const timeval value{us / 1000000, us % 1000000};
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value) != 0) {
    return ErrnoStatus(errno, "set SO_SNDTIMEO");
  }
  return Status::Ok();
}

}  // namespace torpor::net
