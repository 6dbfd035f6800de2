#ifndef TORPOR_TESTS_SURVIVAL_TRIAL_H_
#define TORPOR_TESTS_SURVIVAL_TRIAL_H_

#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "tests/survival/scene.h"

namespace torpor::survival {

enum class Event {
  kWorkerKilled,
  kWorkerStopped,
  kDaemonKilled,
  kDaemonStopped,
  kKeeperKilled,
  kBothKilled,
  kBothKilledNoName,  // of the pool, which is lost with them
  kDriverError,
  kNoHostRoom,
  kNoDeviceRoom,
  kNoDescriptors,
};
const char* Name(Event event);

// A cell of the table: what an event at a step led to.
struct Cell {
  std::string outcome;  // "done", "undone", and the reason that the caller got
  Duration recovery{};  // from the event, or the end of a stop, until all is at rest
};

// The steps of an operation that nothing disturbs, in their order. Fails the test if that does not
// leave everything right.
std::vector<Step> StepsOf(Operation operation);
// What comes before all of them: then the event happens first.
Step TheCall();
// Whether the event can happen at that step at all.
bool Applies(Event event, const Step& step);
// The event, at the step: all that must hold afterwards is expected here.
Cell RunTrial(Operation operation, Event event, const Step& step);

}  // namespace torpor::survival

#endif  // TORPOR_TESTS_SURVIVAL_TRIAL_H_
