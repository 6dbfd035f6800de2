#include "daemon/access/last_policy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "daemon/log.h"
#include "lib/base/unique_fd.h"

namespace torpor::access {
namespace {

Status WriteAll(int fd, const std::string& text, const std::string& path) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t part = ::write(fd, text.data() + written, text.size() - written);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return ErrnoStatus(errno, "write " + path);
    written += static_cast<size_t>(part);
  }
  return Status::Ok();
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t size = ::read(fd, part, sizeof part);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus(errno, "read " + path);
    if (size == 0) return text;
    text.append(part, static_cast<size_t>(size));
  }
}

}  // namespace

std::string LastPolicy::Heading() const { return "# " + access_file_ + "\n"; }

Result<std::optional<Policy>> LastPolicy::Choose(Result<std::optional<Policy>> loaded) const {
  if (loaded.ok() && !loaded->has_value()) {
    Forget();
    return loaded;
  }
  if (loaded.ok()) {
    if (const Status kept = Keep(**loaded); !kept.ok()) {
      Forget();
      log::Warning("the daemon after this one will need the access file: {}", kept);
    }
    return loaded;
  }
  Result<std::optional<Policy>> last = Load();
  if (!last.ok()) log::Warning("what the daemon before has read is wrong: {}", last.status());
  if (!last.ok() || !last->has_value()) return loaded;
  log::Error(
      "the access file is wrong: {}. This daemon goes by what the one before it has read, so that "
      "workers come back. Mend the file, then: torporctl upgrade",
      loaded.status());
  return last;
}

void LastPolicy::Forget() const { ::unlink(path_.c_str()); }

Status LastPolicy::Keep(const Policy& policy) const {
  const std::string made = path_ + ".new";
  ::unlink(made.c_str());
  const UniqueFd file(
      ::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "create " + made);
  TORPOR_RETURN_IF_ERROR(WriteAll(file.get(), Heading() + policy.ToText(), made));
  if (::rename(made.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, "rename " + made);
  return Status::Ok();
}

Result<std::optional<Policy>> LastPolicy::Load() const {
  const std::optional<Policy> none;
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return none;
  if (!file.valid()) return ErrnoStatus(errno, "open " + path_);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return ErrnoStatus(errno, "look at " + path_);
  if (!S_ISREG(about.st_mode) || about.st_uid != ::geteuid() ||
      (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return none;
  }
  TORPOR_ASSIGN_OR_RETURN(const std::string text, ReadAll(file.get(), path_));
  const std::string heading = Heading();
  if (text.compare(0, heading.size(), heading) != 0) return none;
  TORPOR_ASSIGN_OR_RETURN(Policy policy, Policy::Parse(text, path_));
  return std::optional<Policy>(std::move(policy));
}

}  // namespace torpor::access
