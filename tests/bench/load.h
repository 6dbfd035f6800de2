#ifndef TORPOR_TESTS_BENCH_LOAD_H_
#define TORPOR_TESTS_BENCH_LOAD_H_

#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "tests/bench/samples.h"
#include "tests/harness/daemon_process.h"

namespace torpor::bench {

struct LoadOptions {
  Duration duration = seconds(20);
  int usage_rate = 200;  // a second
  int reserve_rate = 50;
  int movers = 2;                    // threads that put workers to sleep and wake them; 0: none
  std::vector<std::string> workers;  // ids
};

struct LoadFigures {
  double seconds = 0;
  Samples usage, reserve, release, sleep, wake;
  Samples lag;  // how late the calls were sent
  int64_t copied_bytes = 0;
};

// Calls Usage and Reserve at fixed rates, whatever the answers do (an open loop), and meanwhile
// puts random workers to sleep and wakes them, as fast as the answers come. A call's time counts
// from the moment it was due, so that one that waits behind others, here or in the daemon, shows
// it. Each reservation is released when it is there; that call's time counts from the sending.
void RunLoad(const DaemonProcess& daemon, const LoadOptions& options, LoadFigures& figures);

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_LOAD_H_
