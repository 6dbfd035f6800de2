// torpord, whose driver does as files of the folder in TORPOR_TEST_FAULTS say: while there is one
// named "hold-CALL", calls of that name wait, and with "fail-CALL" they fail, with the reason that
// is its contents.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "daemon/torpord.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/cuda/call_kind.h"
#include "lib/cuda/fault_driver.h"

int main(int argc, char** argv) {
  using namespace torpor;
  const char* const folder = std::getenv("TORPOR_TEST_FAULTS");
  if (folder == nullptr) return 1;
  Decorators decorators;
  decorators.driver = [&](std::unique_ptr<Driver> driver) {
    auto faulty = std::make_unique<FaultDriver>(std::move(driver));
    faulty->SetGate([root = std::string(folder)](CallKind kind) {
      const std::string call = CallName(kind);
      while (std::filesystem::exists(root + "/hold-" + call)) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      std::ifstream fault(root + "/fail-" + call);
      std::string reason;
      return fault >> reason ? Internal(reason, call + " fails") : Status::Ok();
    });
    return faulty;
  };
  return RunTorpord({argv + 1, argv + argc}, decorators);
}
