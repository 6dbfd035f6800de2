#include "client/connect.h"

#include <utility>

#include "client/discovery.h"
#include "lib/base/runtime_dir.h"
#include "lib/cuda/cuda_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor::client {
namespace {

Status WrongDevice(const std::string& message, const wire::HelloReply& hello,
                   const std::string& worker_uuid) {
  return FailedPrecondition("WRONG_DEVICE", message)
      .With("daemon_device", hello.device_uuid)
      .With("worker_device", worker_uuid);
}

Result<std::shared_ptr<Driver>> OpenHostDevice(const wire::HelloReply& hello) {
  DeviceInfo device;
  device.kind = hello.device_kind;
  device.uuid = hello.device_uuid;
  device.name = hello.device_uuid;
  device.total = hello.device_total;
  device.granularity = hello.granularity;
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> driver, HostDriver::OpenDevice(device));
  return std::shared_ptr<Driver>(std::move(driver));
}

bool IsGpuUuid(const std::string& uuid) {
  return uuid.rfind("GPU-", 0) == 0 || uuid.rfind("MIG-", 0) == 0;
}

// The GPU that is asked for. Nothing: this process uses a host device.
Result<std::shared_ptr<Driver>> OpenGpu(const std::string& kind, const ConnectOptions& options) {
  const std::string& uuid = options.session.device_uuid;
  if (kind == "host") return std::shared_ptr<Driver>();
  if (kind == "auto") {
    if (!uuid.empty() && !IsGpuUuid(uuid)) return std::shared_ptr<Driver>();
    const CudaDriver::ProbeResult probe = CudaDriver::Probe();
    if (probe.presence == CudaDriver::Presence::kNone) return std::shared_ptr<Driver>();
    if (probe.presence == CudaDriver::Presence::kBroken) return probe.error;
  }
  CudaDriver::Options gpu;
  gpu.uuid = uuid;
  gpu.ordinal = options.device;
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<CudaDriver> driver, CudaDriver::OpenDevice(gpu));
  return std::shared_ptr<Driver>(std::move(driver));
}

}  // namespace

Result<std::unique_ptr<Session>> Connect(const ConnectOptions& options) {
  const std::string kind = options.driver.empty() ? "auto" : options.driver;
  if (kind != "auto" && kind != "cuda" && kind != "host") {
    return InvalidArgument("BAD_DRIVER", "driver \"" + kind + "\" is not auto, cuda or host");
  }
  Session::Options session = options.session;
  TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Driver> gpu, OpenGpu(kind, options));
  if (gpu != nullptr) session.device_uuid = gpu->device().uuid;
  if (session.socket_path.empty()) {
    std::string runtime_dir = options.runtime_dir;
    if (runtime_dir.empty()) {
      TORPOR_ASSIGN_OR_RETURN(runtime_dir, DefaultRuntimeDir());
    }
    TORPOR_ASSIGN_OR_RETURN(session.socket_path,
                            FindWorkerSocket(runtime_dir, session.device_uuid));
  }
  return Session::Connect(
      session, [&](const wire::HelloReply& hello) -> Result<std::shared_ptr<Driver>> {
        if (gpu != nullptr && gpu->device().uuid == hello.device_uuid) return gpu;
        if (gpu == nullptr && hello.device_kind == "host") return OpenHostDevice(hello);
        return WrongDevice("the daemon serves a device that this process does not use", hello,
                           session.device_uuid);
      });
}

}  // namespace torpor::client
