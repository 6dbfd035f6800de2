#ifndef TORPOR_TESTS_SURVIVAL_STEPPED_DRIVER_H_
#define TORPOR_TESTS_SURVIVAL_STEPPED_DRIVER_H_

#include <memory>
#include <string>

#include "lib/cuda/driver.h"
#include "tests/survival/step_board.h"

namespace torpor::survival {

// `driver`, each call of which is a step, as "daemon: Create" with `who` "daemon". Not among them
// is what the daemon does on its own account, at any time: measuring, pinning, its copy streams.
// `board` must outlive it.
std::unique_ptr<Driver> StepDriver(std::unique_ptr<Driver> driver, const std::string& who,
                                   StepBoard& board);

}  // namespace torpor::survival

#endif  // TORPOR_TESTS_SURVIVAL_STEPPED_DRIVER_H_
