#ifndef TORPOR_TESTS_HARNESS_WORKER_PROCESS_H_
#define TORPOR_TESTS_HARNESS_WORKER_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/harness/child_process.h"

namespace torpor {

// tests/worker's test_worker: a process that uses libtorpor as it is told, line by line (main.cc
// there lists the commands). Not thread-safe.
class WorkerProcess {
 public:
  static constexpr char kProgram[] = "tests/worker/test_worker";  // in the runfiles
  // Without a session. `program`: another build of it.
  static Result<std::unique_ptr<WorkerProcess>> Start(const std::string& program = kProgram);
  // With one, at `worker_socket`. `quiesce`: none, synchronize, guard or callback.
  static Result<std::unique_ptr<WorkerProcess>> Connect(const std::string& worker_socket,
                                                        const std::string& name,
                                                        const std::string& quiesce = "guard",
                                                        const std::string& more_options = "",
                                                        const std::string& program = kProgram);

  ChildProcess& process() { return *process_; }
  // "w-1", once connected.
  const std::string& id() const { return id_; }

  // What follows "ok " in the answer, or the error of it.
  Result<std::string> Ask(const std::string& command, Duration patience = kPatience);
  // Without waiting for the answer, which ReadAnswer gives.
  Status Tell(const std::string& command) { return process_->WriteLine(command); }
  Result<std::string> ReadAnswer(Duration patience = kPatience);

  // Allocates `size` bytes ("16MiB") under `tag` and fills them from `seed`; the segment's id.
  Result<std::string> Allocate(const std::string& tag, const std::string& size, int seed);

 private:
  explicit WorkerProcess(std::unique_ptr<ChildProcess> process) : process_(std::move(process)) {}
  std::unique_ptr<ChildProcess> process_;
  std::string id_;
};

// The value of `key` in "key=value key=value"; empty without it.
std::string WordOf(const std::string& answer, const std::string& key);

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_WORKER_PROCESS_H_
