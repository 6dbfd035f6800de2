#include "daemon/access/tls_copies.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/tasks.h"
#include "lib/base/clock.h"

namespace torpor::access {
namespace {

constexpr Duration kLook = seconds(1);

// In place of `copy`, at once for whoever opens its number.
Status Put(const std::string& text, UniqueFd& copy) {
  UniqueFd made(::memfd_create("torpor-tls", MFD_CLOEXEC));
  if (!made.valid()) return ErrnoStatus(errno, "memfd_create");
  for (size_t written = 0; written < text.size();) {
    const ssize_t part = ::write(made.get(), text.data() + written, text.size() - written);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return ErrnoStatus(errno, "write a certificate to memory");
    written += static_cast<size_t>(part);
  }
  if (!copy.valid()) {
    copy = std::move(made);
    return Status::Ok();
  }
  while (::dup3(made.get(), copy.get(), O_CLOEXEC) < 0) {
    if (errno != EINTR && errno != EBUSY) return ErrnoStatus(errno, "dup3");
  }
  return Status::Ok();
}

std::string PathOf(const UniqueFd& fd) { return "/proc/self/fd/" + std::to_string(fd.get()); }

}  // namespace

Result<std::unique_ptr<TlsCopies>> TlsCopies::Make(const TlsFiles& files) {
  std::unique_ptr<TlsCopies> copies(new TlsCopies(files));
  copies->seen_ = copies->Look();
  TORPOR_RETURN_IF_ERROR(copies->TakeUp());
  // Now rather than at each connection.
  const std::string path = PathOf(copies->identity_);
  if (!UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)).valid()) {
    return ErrnoStatus(errno, "open " + path);
  }
  TORPOR_ASSIGN_OR_RETURN(copies->thread_, StartThread([raw = copies.get()] { raw->Watch(); }));
  return copies;
}

TlsCopies::~TlsCopies() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stop_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

TlsFiles TlsCopies::files() const {
  return {PathOf(identity_), PathOf(identity_), PathOf(authorities_)};
}

std::string TlsCopies::Look() const {
  std::string seen;
  for (const std::string& path : {files_.cert, files_.key, files_.client_ca}) {
    struct stat about {};
    if (::stat(path.c_str(), &about) != 0) {
      seen += "- ";
      continue;
    }
    // A change of the mode changes ctime.
    for (const int64_t number :
         {static_cast<int64_t>(about.st_dev), static_cast<int64_t>(about.st_ino),
          int64_t{about.st_size}, int64_t{about.st_ctim.tv_sec}, int64_t{about.st_ctim.tv_nsec}}) {
      seen += std::to_string(number) + ' ';
    }
  }
  return seen;
}

Status TlsCopies::TakeUp() {
  TORPOR_ASSIGN_OR_RETURN(const TlsContents now, ReadTlsFiles(files_));
  TORPOR_RETURN_IF_ERROR(Put(now.client_ca, authorities_));
  return Put(now.cert + "\n" + now.key, identity_);
}

void TlsCopies::Watch() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      const TimePoint next = Clock::Real().Now() + kLook;
      while (!stopping_ && Clock::Real().Now() < next) stop_.WaitUntil(mutex_, next);
      if (stopping_) return;
    }
    // Before it is read: what changes meanwhile is seen the next time.
    std::string now = Look();
    if (now == seen_) continue;
    seen_ = std::move(now);
    if (const Status taken = TakeUp(); taken.ok()) {
      log::Info("the files of the certificates have changed, and are taken up");
    } else {
      log::Error("the files of the certificates have changed, and are not taken up: {}", taken);
    }
  }
}

}  // namespace torpor::access
