#ifndef TORPOR_DAEMON_METRICS_USAGE_READER_H_
#define TORPOR_DAEMON_METRICS_USAGE_READER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "daemon/core/core.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor::metrics {

// Asks for Usage on a thread of its own, so that who wants it need not wait for a driver that does
// not answer. Thread-safe.
class UsageReader {
 public:
  using Ask = std::function<Result<UsageReport>()>;

  UsageReader() = default;
  ~UsageReader() { Stop(); }
  UsageReader(const UsageReader&) = delete;
  UsageReader& operator=(const UsageReader&) = delete;

  // Once. RESOURCE_EXHAUSTED THREADS_EXHAUSTED.
  Status Start(Ask ask);
  // Waits for the answer to what is asked.
  void Stop() EXCLUDES(mutex_);

  // What is asked after the call has begun. Nothing where that fails, is not answered within
  // `patience`, and before Start and after Stop.
  std::optional<UsageReport> Read(Duration patience) EXCLUDES(mutex_);

 private:
  void Run(const Ask& ask) EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool running_ GUARDED_BY(mutex_) = false;
  uint64_t wanted_ GUARDED_BY(mutex_) = 0;  // the number of the last question that somebody needs
  uint64_t begun_ GUARDED_BY(mutex_) = 0;
  uint64_t answered_ GUARDED_BY(mutex_) = 0;
  std::optional<UsageReport> answer_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace torpor::metrics

#endif  // TORPOR_DAEMON_METRICS_USAGE_READER_H_
