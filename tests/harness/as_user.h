#ifndef TORPOR_TESTS_HARNESS_AS_USER_H_
#define TORPOR_TESTS_HARNESS_AS_USER_H_

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/unique_fd.h"

namespace torpor {

struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups = {};
};

// The calling thread alone becomes this user, for good. Needs root.
inline bool BecomeInThread(const User& user) {
  // The system calls themselves change one thread; the C library's functions all of them.
  return ::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) == 0 &&
         ::syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
         ::syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0;
}

// An invalid descriptor if nobody listens, or this user may not.
inline UniqueFd ConnectStream(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return UniqueFd();
  }
  return fd;
}

// A stream connection to a Unix socket, made by this user: the kernel knows a connection by who its
// thread is when it connects. Needs root.
inline UniqueFd ConnectAs(const User& user, const std::string& path) {
  UniqueFd connected;
  std::thread([&] {
    if (BecomeInThread(user)) connected = ConnectStream(path);
  }).join();
  return connected;
}

// Null where the socket is not open to this user.
inline std::shared_ptr<grpc::Channel> ChannelAs(const User& user, const std::string& path) {
  UniqueFd fd = ConnectAs(user, path);
  if (!fd.valid() || ::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) return nullptr;
  return grpc::CreateInsecureChannelFromFd("torpord", fd.Release());
}

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_AS_USER_H_
