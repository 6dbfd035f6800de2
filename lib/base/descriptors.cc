#include "lib/base/descriptors.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>

namespace torpor {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostUnchecked = 256;

int64_t Limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kUnlimited) return kUnlimited;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t CountOpen(int64_t limit) {
  struct stat folder {};
  if (::stat("/proc/self/fd", &folder) != 0) return 0;
  if (folder.st_size > 0) return folder.st_size;
  // Before Linux 6.2.
  DIR* const listed = ::opendir("/proc/self/fd");
  if (listed == nullptr) return errno == EMFILE ? limit : 0;
  int64_t open = -1;  // not the one that lists them
  while (const dirent* const entry = ::readdir(listed)) open += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(listed);
  return open;
}

}  // namespace

DescriptorCount CountDescriptors() {
  const int64_t limit = Limit();
  return {CountOpen(limit), limit};
}

Status RequireDescriptors(const DescriptorCount& count, int64_t kept) {
  if (count.left() >= kept) return Status::Ok();
  return ResourceExhausted("FILE_DESCRIPTORS_EXHAUSTED",
                           "of " + std::to_string(count.limit) + " file descriptors " +
                               std::to_string(count.open) + " are open, and the last " +
                               std::to_string(kept) + " are kept")
      .With("open_descriptors", count.open)
      .With("descriptor_limit", count.limit)
      .With("kept_descriptors", kept);
}

Status DescriptorGuard::Check() {
  const int64_t limit = Limit();
  MutexLock lock(mutex_);
  if (limit == limit_ && unchecked_ > 0) {
    --unchecked_;
    return Status::Ok();
  }
  const DescriptorCount count{CountOpen(limit), limit};
  TORPOR_RETURN_IF_ERROR(RequireDescriptors(count, kept_));
  limit_ = limit;
  // An eighth, as others open some meanwhile.
  unchecked_ = std::min((count.left() - kept_) / 8, kMostUnchecked);
  return Status::Ok();
}

}  // namespace torpor
