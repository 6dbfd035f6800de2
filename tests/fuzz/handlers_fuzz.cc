// Steps of clients and workers against a whole daemon in this process; see World.

#include <cstdint>
#include <memory>

#include "daemon/log.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/world.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torpor;
  constexpr int kRunsOfAWorld = 1000;
  constexpr int kSteps = 8;
  static std::unique_ptr<fuzz::World> world;
  static int runs = 0;
  if (runs++ % kRunsOfAWorld == 0) {
    log::SetLevel(log::Level::kError);
    world.reset();
    world = std::make_unique<fuzz::World>();
  }
  fuzz::Input input(data, size);
  for (int step = 0; step < kSteps && !input.empty(); ++step) {
    switch (input.Below(16)) {
      default:
        world->CallService(input);
        break;
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        world->UseWorker(input);
        break;
      case 11:
        world->CancelCall(input);
        break;
      case 12:
        world->AdvanceClock(input);
        break;
      case 13:
        world->SendFrame(input);
        break;
      case 14:
        world->FailDriver(input);
        break;
      case 15:
        world->Check();
        break;
    }
  }
  world->Reset();
  return 0;
}
