#ifndef TORPOR_CLIENT_CTL_DOCTOR_CHILD_H_
#define TORPOR_CLIENT_CTL_DOCTOR_CHILD_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/unique_fd.h"

namespace torpor::ctl::doctor {

// What became of something that might never come back.
struct Answer {
  enum class End {
    kAnswered,  // with exit status `status`
    kSilent,    // it was killed, or is in the kernel still
    kDied,      // by signal `status`
  };
  End end = End::kSilent;
  int status = 0;
  std::string text;
};

// A function that runs in a child process, so that it can be given up whatever it hangs in. The
// process must have one thread when it is started. Not thread-safe.
class Child {
 public:
  // `body` returns the answer.
  static Child Start(const std::function<std::string()>& body);
  // A program of $PATH; its standard output is the answer. 127: there is no such program.
  static Child StartProgram(const std::vector<std::string>& command);

  // Kills it if it runs.
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  // Waits until `deadline` at most.
  Answer Await(TimePoint deadline);

 private:
  Child(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}
  static Child Fork(const std::function<void(int output)>& body);
  void Kill();

  pid_t pid_;  // 0: it has ended and was waited for
  UniqueFd output_;
};

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_CHILD_H_
