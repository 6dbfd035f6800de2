#include "tests/survival/stepped_driver.h"

#include <utility>

#include "lib/cuda/fault_driver.h"

namespace torpor::survival {

std::unique_ptr<Driver> StepDriver(std::unique_ptr<Driver> driver, const std::string& who,
                                   StepBoard& board) {
  auto stepped = std::make_unique<FaultDriver>(std::move(driver));
  stepped->SetGate([who, &board](CallKind kind) {
    switch (kind) {
      case CallKind::kGetMemoryInfo:
      case CallKind::kRegisterHost:
      case CallKind::kUnregisterHost:
      case CallKind::kCreateStream:
      case CallKind::kDestroyStream:
        return Status::Ok();
      default:
        return board.Enter(who + ": " + CallName(kind));
    }
  });
  return stepped;
}

}  // namespace torpor::survival
