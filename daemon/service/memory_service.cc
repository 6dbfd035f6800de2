#include "daemon/service/memory_service.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "daemon/memory/inventory.h"
#include "daemon/operation/operation.h"
#include "daemon/service/conversions.h"
#include "daemon/service/deadline.h"
#include "daemon/service/grpc_status.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cli/version.h"

namespace torpor {
namespace {

Now MeasureNow(const Clock& clock) { return {clock.Now(), std::chrono::system_clock::now()}; }

int64_t Milliseconds(Duration duration) {
  return std::chrono::duration_cast<milliseconds>(duration).count();
}

void LogOutcomes(const char* what, const std::vector<WorkerOutcome>& outcomes) {
  for (const WorkerOutcome& outcome : outcomes) {
    const std::string worker = WorkerName(outcome.worker);
    if (outcome.status.ok()) {
      log::Info("{} {} ({}): {} segments, device {}, copied {}, discarded {}, {} ms", what, worker,
                outcome.name, outcome.segments, FormatBytes(outcome.device),
                FormatBytes(outcome.copied), FormatBytes(outcome.discarded),
                Milliseconds(outcome.times.total));
    } else {
      log::Warning("{} {} ({}) failed{}: {}", what, worker, outcome.name,
                   outcome.rollback_pending ? ", rollback pending" : "", outcome.status);
    }
  }
}

}  // namespace

grpc::ServerUnaryReactor* MemoryServiceImpl::Run(grpc::CallbackServerContext* context,
                                                 const char* what, std::function<Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const Status admitted = Admit(); !admitted.ok()) {
    reactor->Finish(ToGrpcStatus(admitted));
    return reactor;
  }
  tasks_.Run([this, reactor, what, peer = context->peer(), work = std::move(work)] {
    const Status status = work();
    if (!status.ok()) log::Warning("{} from {} failed: {}", what, peer, status);
    reactor->Finish(ToGrpcStatus(status));
    MutexLock lock(mutex_);
    if (--calls_ == 0) idle_.NotifyAll();
  });
  return reactor;
}

Status MemoryServiceImpl::Admit() {
  MutexLock lock(mutex_);
  if (draining_) return Unavailable("DAEMON_STOPPING", "the daemon is stopping");
  if (calls_ == kMaxCalls) {
    return ResourceExhausted("TOO_MANY_CALLS",
                             "the daemon is busy with as many calls as it takes at a time")
        .With("calls", kMaxCalls);
  }
  ++calls_;
  return Status::Ok();
}

bool MemoryServiceImpl::Drain(TimePoint deadline) {
  if (!DrainCalls(deadline)) return false;
  watch_hub_.End(Unavailable("DAEMON_STOPPING", "the daemon is stopping"));
  return true;
}

bool MemoryServiceImpl::DrainCalls(TimePoint deadline) {
  MutexLock lock(mutex_);
  draining_ = true;
  while (calls_ != 0) {
    if (!idle_.WaitUntil(mutex_, deadline) && Clock::Real().Now() >= deadline) return calls_ == 0;
  }
  return true;
}

int MemoryServiceImpl::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

TimePoint MemoryServiceImpl::DeadlineOf(const grpc::CallbackServerContext& context) const {
  // Operations wait by the real clock, as gRPC does.
  return Clock::Real().Now() + OperationTime(context.raw_deadline(), default_time_);
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Sleep(grpc::CallbackServerContext* context,
                                                   const v1::SleepRequest* request,
                                                   v1::SleepResponse* response) {
  return Run(context, "Sleep", [this, request, response, deadline = DeadlineOf(*context)] {
    TORPOR_ASSIGN_OR_RETURN(const SleepCommand command, ToSleepCommand(*request, deadline));
    TORPOR_ASSIGN_OR_RETURN(const std::vector<WorkerOutcome> outcomes, core_.Sleep(command));
    LogOutcomes("Sleep", outcomes);
    FromOutcomes(outcomes, *response);
    return Status::Ok();
  });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::WakeUp(grpc::CallbackServerContext* context,
                                                    const v1::WakeUpRequest* request,
                                                    v1::WakeUpResponse* response) {
  return Run(context, "WakeUp", [this, request, response, deadline = DeadlineOf(*context)] {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<WorkerOutcome> outcomes,
                            core_.WakeUp(ToWakeCommand(*request, deadline)));
    LogOutcomes("WakeUp", outcomes);
    FromOutcomes(outcomes, *response);
    return Status::Ok();
  });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Usage(grpc::CallbackServerContext* context,
                                                   const v1::UsageRequest* /*request*/,
                                                   v1::UsageResponse* response) {
  return Run(context, "Usage", [this, response] {
    TORPOR_ASSIGN_OR_RETURN(const UsageReport report, core_.Usage());
    FromReport(report, MeasureNow(clock_), *response);
    response->set_version(Version());
    return Status::Ok();
  });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Reserve(grpc::CallbackServerContext* context,
                                                     const v1::ReserveRequest* request,
                                                     v1::ReserveResponse* response) {
  return Run(context, "Reserve", [this, request, response] {
    TORPOR_ASSIGN_OR_RETURN(const ReserveCommand command, ToReserveCommand(*request));
    Bytes requested{};
    for (const ReservationPart& part : command.parts) requested += part.device;
    TORPOR_ASSIGN_OR_RETURN(const ReserveResult result,
                            core_.Reserve(command.name, command.parts, command.host, command.ttl));
    FromReserveResult(result, requested, MeasureNow(clock_), *response);
    log::Info("Reserve {} ({}): device {}, host {}, for {} ms", result.id, command.name,
              FormatBytes(requested), FormatBytes(command.host), Milliseconds(command.ttl));
    return Status::Ok();
  });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Release(grpc::CallbackServerContext* context,
                                                     const v1::ReleaseRequest* request,
                                                     v1::ReleaseResponse* response) {
  return Run(context, "Release", [this, request, response] {
    TORPOR_ASSIGN_OR_RETURN(const Admission::Released released,
                            core_.Release(request->reservation_id()));
    response->set_device_bytes(released.device.value());
    response->set_host_bytes(released.host.value());
    log::Info("Release {}: device {}, host {}", request->reservation_id(),
              FormatBytes(released.device), FormatBytes(released.host));
    return Status::Ok();
  });
}

grpc::ServerWriteReactor<v1::WatchResponse>* MemoryServiceImpl::Watch(
    grpc::CallbackServerContext* /*context*/, const v1::WatchRequest* request) {
  return watch_hub_.Watch(*request);
}

}  // namespace torpor
