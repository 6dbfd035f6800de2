#ifndef TORPOR_DAEMON_RUNTIME_DIR_H_
#define TORPOR_DAEMON_RUNTIME_DIR_H_

#include <string>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor {

// Held by the one daemon that serves `device` on this machine (in this network namespace), whatever
// its runtime directory; for devices that are not simply made up, as host devices are.
// FAILED_PRECONDITION DAEMON_ALREADY_RUNNING.
Result<UniqueFd> LockDevice(const std::string& device);

// The folder of one daemon, <runtime_dir>/<device>, with the lock that makes it the only one: held
// until destroyed, and by the kernel's word gone with the process. Move-only; not thread-safe.
class DeviceDir {
 public:
  // Creates what is missing (runtime directory and folder with mode 0755) and takes the lock.
  //   FAILED_PRECONDITION DAEMON_ALREADY_RUNNING with "pid"; INVALID_ARGUMENT SOCKET_PATH_TOO_LONG,
  //   BAD_DEVICE_NAME
  static Result<DeviceDir> Claim(const std::string& runtime_dir, const std::string& device);

  DeviceDir(DeviceDir&&) = default;
  DeviceDir& operator=(DeviceDir&&) = delete;
  // Removes both sockets; the lock file stays, since a file that others may have open cannot be
  // removed without letting two of them lock different files.
  ~DeviceDir();

  const std::string& path() const { return path_; }
  std::string worker_socket() const { return path_ + "/worker.sock"; }
  std::string control_socket() const { return path_ + "/control.sock"; }

 private:
  bool StillOurs() const;
  DeviceDir(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_RUNTIME_DIR_H_
