#ifndef TORPOR_LIB_BASE_DESCRIPTORS_H_
#define TORPOR_LIB_BASE_DESCRIPTORS_H_

#include <cstdint>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// How many descriptors this process may still open by RLIMIT_NOFILE.
struct DescriptorCount {
  int64_t open = 0;
  int64_t limit = 0;
  int64_t left() const { return limit > open ? limit - open : 0; }
};
DescriptorCount CountDescriptors();

// RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED if `count` has less than `kept` left.
Status RequireDescriptors(const DescriptorCount& count, int64_t kept);

// Keeps those that take many descriptors from taking the last `kept`. Thread-safe.
class DescriptorGuard {
 public:
  explicit DescriptorGuard(int64_t kept) : kept_(kept) {}

  // Before each use of a few. Counts only as often as it has to.
  Status Check() EXCLUDES(mutex_);

 private:
  const int64_t kept_;
  Mutex mutex_;
  int64_t limit_ GUARDED_BY(mutex_) = -1;
  int64_t unchecked_ GUARDED_BY(mutex_) = 0;  // may pass without a count
};

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_DESCRIPTORS_H_
