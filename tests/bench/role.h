#ifndef TORPOR_TESTS_BENCH_ROLE_H_
#define TORPOR_TESTS_BENCH_ROLE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "tests/harness/child_process.h"

namespace torpor::bench {

// bench_sleep runs itself again in other roles, each a process of its own with a context of its
// own, which is gone with it. A role answers every line of its standard input with a line: "ok ..."
// or "error REASON message". It ends when its input does.

// A worker with one model load.
//   allocate      ok us=MICROSECONDS worst_us=MICROSECONDS of the weights, by segment
//   fill N        writes other bytes to every chunk of the weights for every N; ok ms=
//   dirty K       changes one word in every Kth chunk of 2 MiB; ok chunks=
//   verify        compares every byte, the KV cache's with 0; ok bytes=
// Arguments: socket, driver, load, scale.
int RunWorker(const std::vector<std::string>& arguments);

// Measures the link with pinned memory; one answer without being asked. Arguments: driver, bytes to
// copy for each figure.
//   ok {"d2h": {...}, "h2d": {...}, "duplex": {...}} in GB/s by the size of a step
// With a third argument, "asked", it says "ready" and copies what it is asked to, so that several
// can do so at once:
//   d2h, h2d, duplex   ok gbps=RATE ms=TIME
int RunLink(const std::vector<std::string>& arguments);

// Times what the driver takes for a handle, by size; one answer without being asked: ok [{...}], in
// microseconds, medians and the first of each size. Arguments: driver.
int RunHandles(const std::vector<std::string>& arguments);

// Queries the device's free memory all the time, with pauses of 0.2 ms.
//   worst FROM TO  ok ms=WORST count=N, among the queries under way in this time (of the steady
//                  clock, in nanoseconds)
// Arguments: driver.
int RunQuery(const std::vector<std::string>& arguments);

// Keeps the GPU's processors busy: floating point on all of them, kernels of about 2 ms queued
// ahead. On the host driver, one thread that computes.
//   count         ok kernels=N ms=MEAN since the last count
// Arguments: driver.
int RunNeighbour(const std::vector<std::string>& arguments);

// Allocates and touches as much host memory; one answer without being asked: ok seconds=
// Arguments: bytes.
int RunTouch(const std::vector<std::string>& arguments);

// ---- For roles

// "host" gives a device of its own with `total` bytes.
Result<std::unique_ptr<Driver>> OpenRoleDriver(const std::string& kind, Bytes total);
// Answers lines until the input ends. `answer` gives what follows "ok ".
using AnswerLine = std::function<Result<std::string>(const std::vector<std::string>& words)>;
int AnswerLines(const AnswerLine& answer);
void Say(const Result<std::string>& answer);

// Host memory with huge pages where the system gives them, not yet touched; freed with the object.
class HostMemory {
 public:
  static Result<std::unique_ptr<HostMemory>> Map(Bytes size);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  char* data() const { return data_; }
  Bytes size() const { return size_; }
  // Writes to every page, by all processors.
  void Touch();

 private:
  HostMemory(char* data, Bytes size) : data_(data), size_(size) {}
  char* const data_;
  const Bytes size_;
};

// Runs body(i) for i below `count` on up to `threads` threads; the first error.
Status InParallel(int threads, int64_t count,
                  const std::function<Status(int thread, int64_t i)>& body);
int ProcessorCount();

// ---- For who starts them

class RoleProcess {
 public:
  static Result<std::unique_ptr<RoleProcess>> Start(const std::string& role,
                                                    const std::vector<std::string>& arguments);
  // What follows "ok ".
  Result<std::string> Ask(const std::string& line, Duration patience = std::chrono::minutes(3));
  Result<std::string> ReadAnswer(Duration patience = std::chrono::minutes(3));
  // Ends its input and waits until it has ended.
  Status Stop();

 private:
  explicit RoleProcess(std::string role, std::unique_ptr<ChildProcess> process)
      : role_(std::move(role)), process_(std::move(process)) {}
  const std::string role_;
  const std::unique_ptr<ChildProcess> process_;
};

// The number behind "KEY=" in an answer; -1 without it.
double NumberOf(const std::string& answer, const std::string& key);

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_ROLE_H_
