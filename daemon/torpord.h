#ifndef TORPOR_DAEMON_TORPORD_H_
#define TORPOR_DAEMON_TORPORD_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/keeper/keeper.h"
#include "lib/cuda/driver.h"

namespace torpor {

// What is put between the daemon and its driver and keeper, before their first call. Null: nothing.
struct Decorators {
  std::function<std::unique_ptr<Driver>(std::unique_ptr<Driver> driver)> driver;
  // `keeper` outlives what is returned.
  std::function<std::unique_ptr<Keeper>(Keeper& keeper)> keeper;
};

// The whole of torpord, until a signal ends it; `arguments` are its flags. Takes over the process:
// signals, descriptor limit, log. The exit status; 2: of a wrong command line.
int RunTorpord(const std::vector<std::string>& arguments, const Decorators& decorators = {});

}  // namespace torpor

#endif  // TORPOR_DAEMON_TORPORD_H_
