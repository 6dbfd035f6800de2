// torpord, whose calls of its driver and its keeper are steps for a test to hold up.

#include <cstdio>

#include "daemon/torpord.h"
#include "tests/survival/step_board.h"
#include "tests/survival/stepped_driver.h"
#include "tests/survival/stepped_keeper.h"

int main(int argc, char** argv) {
  using namespace torpor;
  const auto board = survival::StepBoard::Open();
  if (!board.ok()) {
    std::fprintf(stderr, "stepped_torpord: %s\n", board.status().ToString().c_str());
    return 1;
  }
  Decorators decorators;
  decorators.driver = [&](std::unique_ptr<Driver> driver) {
    return survival::StepDriver(std::move(driver), "daemon", **board);
  };
  decorators.keeper = [&](Keeper& keeper) {
    return std::make_unique<survival::SteppedKeeper>(keeper, **board);
  };
  return RunTorpord({argv + 1, argv + argc}, decorators);
}
