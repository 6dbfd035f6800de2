#include "daemon/runtime_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lib/base/runtime_dir.h"
#include "lib/base/units.h"

namespace torpor {
namespace {

constexpr size_t kMaxSocketPath = 107;

Status AlreadyRunning(int lock, const std::string& device) {
  char text[24] = {};
  const ssize_t length = ::pread(lock, text, sizeof text - 1, 0);
  std::string pid(text, length > 0 ? static_cast<size_t>(length) : 0);
  pid = pid.substr(0, pid.find('\n'));
  return FailedPrecondition("DAEMON_ALREADY_RUNNING", "a daemon with pid " +
                                                          (pid.empty() ? "unknown" : pid) +
                                                          " serves device " + device + " already")
      .With("pid", pid)
      .With("device", device);
}

}  // namespace

Result<DeviceDir> DeviceDir::Claim(const std::string& runtime_dir, const std::string& device) {
  TORPOR_RETURN_IF_ERROR(CheckName(device, "device", "BAD_DEVICE_NAME"));
  std::error_code error;
  const std::string root = std::filesystem::absolute(runtime_dir, error).lexically_normal();
  if (error) return ErrnoStatus(error.value(), "find folder " + runtime_dir);
  const std::string path = (std::filesystem::path(root) / device).string();
  const std::string longest = path + "/control.sock";
  if (longest.size() > kMaxSocketPath) {
    return InvalidArgument("SOCKET_PATH_TOO_LONG",
                           longest + " is too long for a socket: use a shorter --runtime_dir")
        .With("length", longest.size())
        .With("limit", kMaxSocketPath);
  }
  TORPOR_RETURN_IF_ERROR(MakeFolder(root));
  TORPOR_RETURN_IF_ERROR(MakeFolder(path));
  const std::string lock_path = path + "/lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock.valid()) return ErrnoStatus(errno, "open " + lock_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return AlreadyRunning(lock.get(), device);
    return ErrnoStatus(errno, "lock " + lock_path);
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoStatus(errno, "write " + lock_path);
  }
  return DeviceDir(path, std::move(lock));
}

Result<UniqueFd> LockDevice(const std::string& device) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name: it begins with a zero byte, has no file, and ends with its process.
  const std::string name = std::string(1, '\0') + "torpor/" + device;
  if (name.size() > sizeof address.sun_path) {
    return InvalidArgument("BAD_DEVICE_NAME", "\"" + device + "\" is too long");
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  UniqueFd lock(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!lock.valid()) return ErrnoStatus(errno, "create the lock of device " + device);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (::bind(lock.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) return lock;
  if (errno != EADDRINUSE) return ErrnoStatus(errno, "lock device " + device);
  return FailedPrecondition("DAEMON_ALREADY_RUNNING",
                            "another daemon of this machine, with another runtime directory, "
                            "serves device " +
                                device)
      .With("device", device);
}

bool DeviceDir::StillOurs() const {
  struct stat held {};
  struct stat there {};
  return ::fstat(lock_.get(), &held) == 0 && ::stat((path_ + "/lock").c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

DeviceDir::~DeviceDir() {
  // Where the folder was removed, another daemon may serve at its path by now.
  if (!lock_.valid() || !StillOurs()) return;
  ::unlink(worker_socket().c_str());
  ::unlink(control_socket().c_str());
}

}  // namespace torpor
