#ifndef TORPOR_LIB_BASE_UNIQUE_FD_H_
#define TORPOR_LIB_BASE_UNIQUE_FD_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/base/status.h"

namespace torpor {

// Owns one file descriptor. Move-only; not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { Reset(); }

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

  // A second descriptor (close-on-exec) of the same open file.
  Result<UniqueFd> Duplicate() const {
    const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return ErrnoStatus(errno, "duplicate file descriptor");
    return UniqueFd(copy);
  }

 private:
  int fd_ = -1;
};

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_UNIQUE_FD_H_
