#include "daemon/metrics/request_metrics.h"

#include <string>
#include <utility>
#include <variant>

#include "daemon/metrics/family.h"
#include "daemon/metrics/usage_families.h"

namespace torpor::metrics {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildHistogram;

const prometheus::Histogram::BucketBoundaries kSeconds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                                          1,     3,     10,   30,   100, 300};
constexpr const char* kKinds[] = {"sleep", "wake_up"};
constexpr const char* kMethods[] = {"Sleep", "WakeUp",  "Usage",  "Reserve",
                                    "Renew", "Release", "Upgrade"};
constexpr const char* kPhases[] = {"quiesce", "digest", "copy", "worker", "handles"};
constexpr const char* kSessionChanges[] = {"opened", "closed", "returned"};
constexpr const char* kReservationChanges[] = {"made",     "renewed", "drawn_out",
                                               "released", "expired", "ended"};
constexpr const char* kQueueChanges[] = {"entered", "granted", "left"};

const char* NameOf(OperationKind kind) { return kKinds[static_cast<size_t>(kind)]; }

double ToDouble(Bytes bytes) { return static_cast<double>(bytes.value()); }

}  // namespace

RequestMetrics::RequestMetrics(prometheus::Registry& registry)
    : requests_(BuildCounter()
                    .Name("torpor_requests_total")
                    .Help("Requests that were answered: of callers (plane control) and of workers.")
                    .Register(registry)),
      request_seconds_(BuildHistogram()
                           .Name("torpor_request_duration_seconds")
                           .Help("From a call of the control plane to its answer.")
                           .Register(registry)),
      errors_(BuildCounter()
                  .Name("torpor_errors_total")
                  .Help("Errors by reason: of answers to callers and workers, and of operations.")
                  .Register(registry)),
      operations_(BuildCounter()
                      .Name("torpor_operations_total")
                      .Help("Sleeps and wakes of one worker that had something to do.")
                      .Register(registry)),
      operation_seconds_(BuildHistogram()
                             .Name("torpor_operation_duration_seconds")
                             .Help("From the begin of a worker's sleep or wake to its answer.")
                             .Register(registry)),
      phase_seconds_(
          BuildHistogram()
              .Name("torpor_operation_phase_duration_seconds")
              .Help("Where the time of successful sleeps and wakes went; phases overlap.")
              .Register(registry)),
      released_(BuildCounter()
                    .Name("torpor_moved_device_bytes_total")
                    .Help("Device memory that sleeps gave back and wakes took.")
                    .Register(registry)),
      copied_(BuildCounter()
                  .Name("torpor_copied_bytes_total")
                  .Help("Bytes copied to the host by sleeps and to the device by wakes.")
                  .Register(registry)),
      discarded_(BuildCounter()
                     .Name("torpor_discarded_bytes_total")
                     .Help("Bytes dropped by sleeps and cleared by wakes.")
                     .Register(registry)),
      offload_asked_(BuildCounter()
                         .Name("torpor_offload_asked_bytes_total")
                         .Help("Bytes that sleeps had to have in the host pool.")
                         .Register(registry)
                         .Add({})),
      offload_unchanged_(
          BuildCounter()
              .Name("torpor_offload_unchanged_bytes_total")
              .Help("Of these, what needed no copy, since its image was still right.")
              .Register(registry)
              .Add({})),
      rollbacks_(BuildCounter()
                     .Name("torpor_rollbacks_total")
                     .Help("Failed sleeps and wakes that were taken back.")
                     .Register(registry)),
      sessions_(BuildCounter()
                    .Name("torpor_session_changes_total")
                    .Help("Sessions of workers that began, ended, or came back after a restart.")
                    .Register(registry)),
      reservations_(BuildCounter()
                        .Name("torpor_reservation_changes_total")
                        .Help("What became of reservations.")
                        .Register(registry)),
      waits_(BuildCounter()
                 .Name("torpor_queue_changes_total")
                 .Help("Who entered the queue for memory, and left it with and without a grant.")
                 .Register(registry)),
      events_lost_(BuildCounter()
                       .Name("torpor_events_lost_total")
                       .Help("Events that these counters have missed.")
                       .Register(registry)
                       .Add({})) {
  // So that what has not happened yet is 0, and rates begin with the first.
  for (const char* method : kMethods) {
    requests_.Add({{"plane", "control"}, {"request", method}, {"result", "ok"}});
    requests_.Add({{"plane", "control"}, {"request", method}, {"result", "error"}});
    request_seconds_.Add({{"request", method}}, kSeconds);
  }
  for (const char* kind : kKinds) {
    operations_.Add({{"kind", kind}, {"result", "ok"}});
    operations_.Add({{"kind", kind}, {"result", "error"}});
    operation_seconds_.Add({{"kind", kind}}, kSeconds);
    for (const char* phase : kPhases) {
      phase_seconds_.Add({{"kind", kind}, {"phase", phase}}, kSeconds);
    }
    for (auto* family : {&released_, &copied_, &discarded_, &rollbacks_}) {
      family->Add({{"kind", kind}});
    }
  }
  for (const char* change : kSessionChanges) sessions_.Add({{"change", change}});
  for (const char* change : kReservationChanges) reservations_.Add({{"change", change}});
  for (const char* change : kQueueChanges) waits_.Add({{"change", change}});
}

void RequestMetrics::OnAnswer(Plane plane, const char* request, const Status& status,
                              Duration took) {
  const char* const source = plane == Plane::kControl ? "control" : "worker";
  requests_.Add({{"plane", source}, {"request", request}, {"result", status.ok() ? "ok" : "error"}})
      .Increment();
  if (plane == Plane::kControl) {
    request_seconds_.Add({{"request", request}}, kSeconds).Observe(Seconds(took));
  }
  CountError(source, status);
}

void RequestMetrics::CountError(const char* source, const Status& status) {
  if (status.ok()) return;
  bool known = false;
  {
    MutexLock lock(mutex_);
    known = reasons_.size() < kMostReasons ? (reasons_.insert(status.reason()), true)
                                           : reasons_.count(status.reason()) != 0;
  }
  errors_.Add({{"source", source}, {"reason", known ? status.reason() : kOther}}).Increment();
}

void RequestMetrics::OnEvent(const EventBody& event) {
  const auto at = [](const auto& names, auto change) { return names[static_cast<size_t>(change)]; };
  if (const auto* operation = std::get_if<OperationEvent>(&event)) {
    Count(*operation);
  } else if (const auto* session = std::get_if<SessionEvent>(&event)) {
    sessions_.Add({{"change", at(kSessionChanges, session->change)}}).Increment();
  } else if (const auto* reservation = std::get_if<ReservationEvent>(&event)) {
    reservations_.Add({{"change", at(kReservationChanges, reservation->change)}}).Increment();
  } else if (const auto* queue = std::get_if<QueueEvent>(&event)) {
    waits_.Add({{"change", at(kQueueChanges, queue->change)}}).Increment();
  }
}

void RequestMetrics::Count(const OperationEvent& event) {
  const char* const kind = NameOf(event.kind);
  if (event.change == OperationEvent::Change::kRolledBack) {
    rollbacks_.Add({{"kind", kind}}).Increment();
  }
  if (event.change != OperationEvent::Change::kEnded) return;
  // The caller may have an error after the commit: the worker has yet to notice that it is awake.
  operations_.Add({{"kind", kind}, {"result", event.status.ok() ? "ok" : "error"}}).Increment();
  operation_seconds_.Add({{"kind", kind}}, kSeconds).Observe(Seconds(event.times.total));
  CountError("operation", event.status);
  if (!event.status.ok()) return;
  const std::pair<const char*, Duration> phases[] = {{"quiesce", event.times.quiesce},
                                                     {"digest", event.times.digest},
                                                     {"copy", event.times.copy},
                                                     {"worker", event.times.worker},
                                                     {"handles", event.times.handles}};
  for (const auto& [phase, took] : phases) {
    phase_seconds_.Add({{"kind", kind}, {"phase", phase}}, kSeconds).Observe(Seconds(took));
  }
  released_.Add({{"kind", kind}}).Increment(ToDouble(event.device));
  copied_.Add({{"kind", kind}}).Increment(ToDouble(event.copied));
  discarded_.Add({{"kind", kind}}).Increment(ToDouble(event.discarded));
  if (event.kind == OperationKind::kSleep) {
    offload_asked_.Increment(ToDouble(event.copied + event.unchanged));
    offload_unchanged_.Increment(ToDouble(event.unchanged));
  }
}

}  // namespace torpor::metrics
