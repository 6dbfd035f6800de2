#include "daemon/health/health_monitor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include "daemon/log.h"
#include "daemon/operation/tasks.h"

namespace torpor {
namespace {

// After these no call of this process succeeds any more. Any other error may pass.
constexpr std::array<std::string_view, 17> kFatal = {
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_EXTERNAL_DEVICE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
};
constexpr int kFailures = 3;  // in a row, of errors that may pass

bool IsFatal(const Status& status) {
  return std::find(kFatal.begin(), kFatal.end(), status.reason()) != kFatal.end();
}

int64_t MillisecondsSince(TimePoint then) {
  return std::chrono::duration_cast<milliseconds>(Clock::Real().Now() - then).count();
}

}  // namespace

HealthMonitor::HealthMonitor(Options options, std::function<void(const Status&)> tell)
    : options_(options),
      tell_(std::move(tell)),
      status_(Unavailable("DAEMON_STARTING", "the daemon is starting, and not ready yet")) {}

HealthMonitor::~HealthMonitor() { Stop(); }

Status HealthMonitor::Start(Driver& driver, Overdue overdue) {
  TORPOR_ASSIGN_OR_RETURN(prober_, StartThread([this, &driver] { Probe(driver); }));
  Become(Status::Ok(), false);
  TORPOR_ASSIGN_OR_RETURN(checker_,
                          StartThread([this, overdue = std::move(overdue)] { Check(overdue); }));
  return Status::Ok();
}

void HealthMonitor::End(const Status& why) { Become(why, true); }

void HealthMonitor::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (checker_.joinable()) checker_.join();
  if (prober_.joinable()) prober_.join();
}

Status HealthMonitor::status() const {
  MutexLock lock(mutex_);
  return status_;
}

bool HealthMonitor::NeedsRestart(const Status& status) {
  return status.reason() == "DRIVER_SILENT" || status.reason() == "GPU_LOST";
}

void HealthMonitor::Probe(Driver& driver) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      asked_ = Clock::Real().Now();
    }
    const Status answer = driver.GetMemoryInfo().status();
    MutexLock lock(mutex_);
    asked_.reset();
    answer_ = answer;
    failures_ = answer.ok() ? 0 : failures_ + 1;
    const TimePoint next = Clock::Real().Now() + options_.probe_interval;
    while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
    }
  }
}

void HealthMonitor::Check(const Overdue& overdue) {
  for (;;) {
    Become(Judge(overdue), false);
    MutexLock lock(mutex_);
    const TimePoint next = Clock::Real().Now() + options_.check_interval;
    while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
    }
    if (stopping_) return;
  }
}

Status HealthMonitor::Judge(const Overdue& overdue) {
  const TimePoint now = Clock::Real().Now();
  {
    MutexLock lock(mutex_);
    if (asked_.has_value() && now - *asked_ > options_.probe_bound) {
      return Unavailable("DRIVER_SILENT", "the driver does not answer how much memory is free")
          .With("since_ms", MillisecondsSince(*asked_));
    }
    if (failures_ >= kFailures || (failures_ > 0 && IsFatal(answer_))) {
      return Unavailable("GPU_LOST",
                         "the driver does not serve this process any more: " + answer_.message())
          .With("cause", answer_.reason())
          .With("failures", failures_);
    }
    // A first failure that may pass changes nothing: what was lost stays lost until it answers.
    if (failures_ > 0 && status_.reason() == "GPU_LOST") return status_;
  }
  const std::optional<OverdueOperation> stuck = overdue(now - options_.margin);
  if (!stuck.has_value()) return Status::Ok();
  return Unavailable("OPERATION_STUCK", "operation " + OperationName(stuck->operation) +
                                            " on worker " + WorkerName(stuck->worker) + " (" +
                                            stuck->worker_name + ") is not over at its deadline")
      .With("operation", OperationName(stuck->operation))
      .With("worker", WorkerName(stuck->worker))
      .With("name", stuck->worker_name)
      .With("overdue_ms", MillisecondsSince(stuck->deadline));
}

void HealthMonitor::Become(const Status& status, bool last) {
  MutexLock telling(telling_);
  bool other = false;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = last;
    other = status.reason() != status_.reason();
    status_ = status;
  }
  if (!other) return;
  if (status.ok()) {
    log::Info("health: serving");
  } else if (last) {
    log::Info("health: not serving: {}", status);
  } else {
    log::Error("health: not serving: {}", status);
  }
  tell_(status);
}

}  // namespace torpor
