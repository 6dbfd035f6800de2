#ifndef TORPOR_TESTS_BENCH_BENCH_DAEMON_H_
#define TORPOR_TESTS_BENCH_BENCH_DAEMON_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "tests/harness/child_process.h"
#include "tests/harness/temp_dir.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::bench {

// How daemons are started.
struct DaemonOptions {
  std::string torpord;                  // the program
  std::string driver;                   // "cuda" or "host"
  std::string log;                      // file that all of them append to; empty: standard error
  std::vector<std::string> more_flags;  // as given on our own command line
  bool knows_pin_pool = false;          // it has --pin_pool
};
Status LookAtTorpord(DaemonOptions& options);

// One Sleep or WakeUp of one worker, timed at its caller.
struct Operation {
  double caller_ms = 0;
  double total_ms = 0;                      // the daemon's own
  std::map<std::string, double> phases_ms;  // timing's other fields, by name
  int64_t device_bytes = 0;
  int64_t copied_bytes = 0;
  int64_t discarded_bytes = 0;
};

// torpord with a warm channel to it. Not thread-safe, except for Usage.
class BenchDaemon {
 public:
  // `pin_pool`: "background" or "on_demand". Serves on return.
  static Result<std::unique_ptr<BenchDaemon>> Start(const DaemonOptions& options, Bytes host_pool,
                                                    Bytes host_device_memory,
                                                    const std::string& pin_pool);

  const std::string& worker_socket() const { return worker_socket_; }
  pid_t pid() const { return process_->pid(); }

  Result<v1::UsageResponse> Usage() const;
  struct Pinned {
    Bytes bytes{};
    TimePoint since;  // when it grew last
  };
  // Until the pool holds `bytes` and all of its budget, or grows no more.
  Result<Pinned> WaitUntilPinned(Bytes bytes) const;

  // Of all workers' segments: there is one worker. Sleeps with level 1.
  Result<Operation> Sleep() const;
  Result<Operation> WakeUp() const;

  // Of the process, from /proc: "VmRSS" and its parts.
  std::map<std::string, Bytes> ResidentMemory() const;

  Status Stop();

 private:
  BenchDaemon() = default;
  TempDir dir_;
  std::string worker_socket_;
  std::unique_ptr<ChildProcess> process_;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

double MillisecondsSince(TimePoint start);

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_BENCH_DAEMON_H_
