// For the test worker: its library connects with a driver whose calls are steps. The linker puts
// this in the place of client::Connect (--wrap), so that the library itself has nothing of it.

#include <memory>
#include <utility>

#include "client/connect.h"
#include "lib/cuda/host_driver.h"
#include "tests/survival/step_board.h"
#include "tests/survival/stepped_driver.h"

namespace torpor::client {

Result<std::unique_ptr<Session>> SteppedConnect(const ConnectOptions& options) __asm__(
    "__wrap__ZN6torpor6client7ConnectERKNS0_14ConnectOptionsE");

Result<std::unique_ptr<Session>> SteppedConnect(const ConnectOptions& options) {
  static const auto* const board =
      new Result<std::unique_ptr<survival::StepBoard>>(survival::StepBoard::Open());
  TORPOR_RETURN_IF_ERROR(board->status());
  return Session::Connect(
      options.session, [](const wire::HelloReply& hello) -> Result<std::shared_ptr<Driver>> {
        DeviceInfo device;
        device.kind = hello.device_kind;
        device.uuid = hello.device_uuid;
        device.name = hello.device_uuid;
        device.total = hello.device_total;
        device.granularity = hello.granularity;
        TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> driver, HostDriver::OpenDevice(device));
        return std::shared_ptr<Driver>(survival::StepDriver(std::move(driver), "worker", ***board));
      });
}

}  // namespace torpor::client
