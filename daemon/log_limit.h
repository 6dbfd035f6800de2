#ifndef TORPOR_DAEMON_LOG_LIMIT_H_
#define TORPOR_DAEMON_LOG_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor::log {

// Keeps lines that others cause from filling the log: of each kind only so many in each interval.
// Of those left out the last one is written when the interval is over, at the latest when this
// ends, with their number: "... [and 3 more like it]" stands for 4. Thread-safe.
class Limit {
 public:
  struct Options {
    Duration interval = seconds(5);
    int lines = 1;      // of each kind in an interval
    size_t kinds = 64;  // known at a time; those beyond count as one
  };
  Limit() : Limit(Options()) {}
  // `clock` must outlive it.
  explicit Limit(const Options& options, const Clock& clock = Clock::Real());
  // Tells all that was left out.
  ~Limit();
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  template <typename... Args>
  void Write(Level level, const std::string& kind, fmt::format_string<Args...> format,
             Args&&... args) {
    if (Enabled(level)) Add(level, kind, fmt::format(format, std::forward<Args>(args)...));
  }

  // Writes what was left out of intervals that are over, or else of all, of every Limit there is.
  static void TellAll(bool also_of_open_intervals);

 private:
  struct Line {
    Level level = Level::kInfo;
    std::string text;
    int64_t count = 0;  // that it stands for
  };
  struct Kind {
    TimePoint since;
    int written = 0;
    Line left_out;  // the last one
  };
  void Add(Level level, const std::string& kind, const std::string& line) EXCLUDES(mutex_);
  Kind& Find(const std::string& kind) REQUIRES(mutex_);
  // Takes what is to be told, and forgets kinds of which nothing is.
  std::vector<Line> TakeRest(bool also_of_open_intervals) EXCLUDES(mutex_);
  void TakeRest(TimePoint now, bool also_of_open_intervals, std::vector<Line>& to) REQUIRES(mutex_);
  static void Tell(const std::vector<Line>& lines);

  const Options options_;
  const Clock& clock_;
  Mutex mutex_;  // nothing is written under it
  std::map<std::string, Kind> kinds_ GUARDED_BY(mutex_);
};

// While there is one, what a Limit has left out is told within a second after its interval; at its
// end all of it. One at a time.
class RestTeller {
 public:
  // RESOURCE_EXHAUSTED THREADS_EXHAUSTED. Once.
  Status Start();
  RestTeller() = default;
  ~RestTeller();
  RestTeller(const RestTeller&) = delete;
  RestTeller& operator=(const RestTeller&) = delete;

 private:
  void Run() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace torpor::log

#endif  // TORPOR_DAEMON_LOG_LIMIT_H_
