#ifndef TORPOR_TESTS_BENCH_STALLS_H_
#define TORPOR_TESTS_BENCH_STALLS_H_

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "tests/bench/bench_daemon.h"
#include "tests/bench/role.h"

namespace torpor::bench {

// How long memory queries take while the daemon does something: in another process, and in a thread
// of the daemon, where each Usage makes one; its time counts at the caller. Both go on from
// construction to the end.
class Stalls {
 public:
  // Both outlive it.
  Stalls(const BenchDaemon& daemon, RoleProcess& query);
  ~Stalls();
  Stalls(const Stalls&) = delete;
  Stalls& operator=(const Stalls&) = delete;

  struct Worst {
    double other_process_ms = 0;
    double own_thread_ms = 0;
  };
  // Of those that were under way in this time.
  Result<Worst> Between(TimePoint from, TimePoint to) EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  const BenchDaemon& daemon_;
  RoleProcess& query_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::vector<std::pair<TimePoint, TimePoint>> calls_ GUARDED_BY(mutex_);
  Status error_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_STALLS_H_
