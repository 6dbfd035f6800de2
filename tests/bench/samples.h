#ifndef TORPOR_TESTS_BENCH_SAMPLES_H_
#define TORPOR_TESTS_BENCH_SAMPLES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace torpor::bench {

// How long the calls of one kind took, and why some failed. Thread-safe.
class Samples {
 public:
  void Add(Duration taken) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    taken_.push_back(taken);
  }
  void AddError(const std::string& reason) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++errors_[reason];
  }

  struct Summary {
    int64_t count = 0;  // that succeeded
    double p50_ms = 0;
    double p99_ms = 0;
    double max_ms = 0;
    std::map<std::string, int64_t> errors;  // by reason
  };
  Summary Take() EXCLUDES(mutex_) {
    std::vector<Duration> taken;
    Summary summary;
    {
      MutexLock lock(mutex_);
      taken.swap(taken_);
      summary.errors.swap(errors_);
    }
    std::sort(taken.begin(), taken.end());
    summary.count = static_cast<int64_t>(taken.size());
    if (taken.empty()) return summary;
    // The smallest value that a share of `p` does not exceed.
    const auto at = [&](double p) {
      const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(taken.size())));
      return std::chrono::duration<double, std::milli>(taken[std::max<size_t>(rank, 1) - 1])
          .count();
    };
    summary.p50_ms = at(0.50);
    summary.p99_ms = at(0.99);
    summary.max_ms = at(1.0);
    return summary;
  }

 private:
  Mutex mutex_;
  std::vector<Duration> taken_ GUARDED_BY(mutex_);
  std::map<std::string, int64_t> errors_ GUARDED_BY(mutex_);
};

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_SAMPLES_H_
