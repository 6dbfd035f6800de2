#ifndef TORPOR_TESTS_BENCH_LOAD_RUN_H_
#define TORPOR_TESTS_BENCH_LOAD_RUN_H_

#include <cstdint>
#include <string>

#include "lib/base/status.h"
#include "tests/bench/bench_daemon.h"
#include "tests/bench/figures.h"
#include "tests/bench/model_load.h"

namespace torpor::bench {

struct RunOptions {
  DaemonOptions daemon;
  std::string device;  // its UUID
  int64_t scale = 1;
  int64_t cycles = 5;
  bool cold = true;          // measure the first sleep with nothing pinned
  bool neighbour = true;     // measure b14 beside a busy process as well
  double link_d2h_gbps = 0;  // 0: unknown
  double link_h2d_gbps = 0;
};

// Measures one load, each part with a daemon and a worker of its own, and adds the figures to
// `figures` as they come, so that those of a run that breaks off are there. Prints a table.
//
//   cold    nothing is pinned: allocate, fill, first sleep, wake, compare every byte
//   pinned  the pool is pinned: allocate, fill, first sleep, wake; then, in each cycle, a sleep and
//           a wake with nothing changed, with 1 % of the chunks changed, and with all; compare
//           every byte
Status MeasureLoad(const RunOptions& options, const ModelLoad& load, Json& figures);

// The daemon pins a pool of `pool` in the background while others query the device's memory.
Status MeasurePinning(const RunOptions& options, Bytes pool, Json& figures);

// What the pool needs for `load`, with some room.
Bytes PoolFor(const ModelLoad& load);

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_LOAD_RUN_H_
