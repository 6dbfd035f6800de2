#ifndef TORPOR_TESTS_SURVIVAL_STEP_BOARD_H_
#define TORPOR_TESTS_SURVIVAL_STEP_BOARD_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace torpor::survival {

// One call of a process, as "daemon: Create": the `number`th of that name, from 1, since the board
// was armed. By name, since calls of different kinds may run side by side.
struct Step {
  std::string name;
  int number = 1;  // 0: of its name there is only one
  std::string ToString() const;
};
inline bool operator==(const Step& a, const Step& b) {
  return a.name == b.name && a.number == b.number;
}

// Where processes under test tell of their steps, before each one, and are held up or made to fail:
// a file that is mapped by all of them. Nothing is locked, so any of them may be killed at any
// time. The test's side: from one thread.
class StepBoard {
 public:
  // What tells the processes where it is: the name of an environment variable.
  static constexpr char kEnvironment[] = "TORPOR_TEST_STEPS";

  // A new one at `path`. The test's.
  static Result<std::unique_ptr<StepBoard>> Create(const std::string& path);
  // The one that the environment names. INVALID_ARGUMENT NO_STEP_BOARD.
  static Result<std::unique_ptr<StepBoard>> Open();
  ~StepBoard();
  StepBoard(const StepBoard&) = delete;
  StepBoard& operator=(const StepBoard&) = delete;

  // --- of the process under test

  // Blocks where the test wants it; an error (INTERNAL INJECTED) where the step is to fail.
  Status Enter(const std::string& name);

  // --- of the test

  // Notes all steps from now on, until Disarm gives them.
  void Trace();
  // The next call of it blocks, once.
  void StopAt(const Step& step);
  void FailAt(const Step& step);
  // Whether the step is reached, by who is held there, or was made to fail.
  bool reached() const;
  // Lets it go on, and stops nothing any more. The steps since Trace.
  std::vector<Step> Disarm();

 private:
  struct Shared;
  explicit StepBoard(Shared* shared) : shared_(shared) {}
  static Result<std::unique_ptr<StepBoard>> Map(const std::string& path, int flags);
  void Arm(const Step& step, int what);

  Shared* const shared_;
};

}  // namespace torpor::survival

#endif  // TORPOR_TESTS_SURVIVAL_STEP_BOARD_H_
