#ifndef TORPOR_DAEMON_LOG_LIMIT_H_
#define TORPOR_DAEMON_LOG_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace torpor::log {

// Keeps lines that others cause from filling the log: of each kind only so many in each interval,
// and a count of what was left out. Thread-safe.
class Limit {
 public:
  struct Options {
    Duration interval = seconds(5);
    int lines = 1;      // of each kind in an interval
    size_t kinds = 64;  // known at a time; those beyond count as one
  };
  Limit() : Limit(Options()) {}
  // `clock` must outlive it.
  explicit Limit(const Options& options, const Clock& clock = Clock::Real())
      : options_(options), clock_(clock) {}

  // To be asked before each line. 0: it is left out. Otherwise how many it stands for, itself and
  // those of its kind that were left out before.
  int64_t Count(const std::string& kind) EXCLUDES(mutex_);

 private:
  struct Kind {
    TimePoint since;
    int written = 0;
    int64_t left_out = 0;
  };
  // May forget what was left out.
  Kind& Find(const std::string& kind, TimePoint now) REQUIRES(mutex_);

  const Options options_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Kind> kinds_ GUARDED_BY(mutex_);
};

// " [and 3 more like it]", to be put behind a line that stands for 4; "" for 1.
std::string AndMore(int64_t count);

}  // namespace torpor::log

#endif  // TORPOR_DAEMON_LOG_LIMIT_H_
