#ifndef TORPOR_TESTS_SURVIVAL_DOCUMENTED_H_
#define TORPOR_TESTS_SURVIVAL_DOCUMENTED_H_

#include <map>
#include <string>

#include "lib/base/status.h"
#include "tests/survival/trial.h"

namespace torpor::survival {

// What docs/survival.md says of an event during an operation: the outcome by step, as Cell has it.
// INVALID_ARGUMENT BAD_TABLE.
Result<std::map<std::string, std::string>> Documented(Operation operation, Event event);

}  // namespace torpor::survival

#endif  // TORPOR_TESTS_SURVIVAL_DOCUMENTED_H_
