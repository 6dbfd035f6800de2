#ifndef TORPOR_TESTS_HARNESS_CHILD_PROCESS_H_
#define TORPOR_TESTS_HARNESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor {

// Long enough for a busy machine, short enough for a test to fail.
constexpr Duration kPatience = seconds(60);

// A program that runs beside the test, with pipes for its standard input and output. Dies with the
// thread that started it, at the latest with this object. Not thread-safe.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> command;                // a path and arguments
    std::map<std::string, std::string> environment;  // besides the test's own
    std::string error_file;                          // standard error; empty: the test's own
  };
  static Result<std::unique_ptr<ChildProcess>> Start(const Options& options);
  // Kills it if it runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  Status WriteLine(const std::string& line);
  // Without its line feed. UNAVAILABLE END_OF_OUTPUT, DEADLINE_EXCEEDED NO_OUTPUT.
  Result<std::string> ReadLine(Duration patience = kPatience);
  // Everything until it closes its output.
  Result<std::string> ReadAll(Duration patience = kPatience);
  void CloseInput() { input_.Reset(); }

  // SIGSTOP: all its threads have stopped on return.
  void Signal(int signal);
  // The exit status, or 128 + the signal that ended it, as a shell has it. DEADLINE_EXCEEDED
  // STILL_RUNNING.
  Result<int> Wait(Duration patience = kPatience);

 private:
  ChildProcess(pid_t pid, UniqueFd input, UniqueFd output)
      : pid_(pid), input_(std::move(input)), output_(std::move(output)) {}
  // False at the end of the output.
  Result<bool> ReadMore(TimePoint deadline);

  const pid_t pid_;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffer_;
  int exit_status_ = -1;
};

// What a program that has ended leaves behind.
struct Finished {
  int exit_status = 0;
  std::string output;
  std::string errors;
};
Result<Finished> RunProgram(const std::vector<std::string>& command,
                            const std::map<std::string, std::string>& environment = {});

std::string ReadFile(const std::string& path);

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_CHILD_PROCESS_H_
