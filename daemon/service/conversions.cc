#include "daemon/service/conversions.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>

#include "daemon/memory/inventory.h"
#include "daemon/service/grpc_status.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "lib/base/utf8.h"
#include "lib/wire/messages.h"

namespace torpor {
namespace {

// --- requests

Selector ToSelector(const v1::Selector& selector) {
  return {{selector.workers().begin(), selector.workers().end()},
          {selector.tags().begin(), selector.tags().end()},
          selector.all()};
}

Result<wire::Policy> ToPolicy(const std::string& tag, v1::Policy policy) {
  switch (policy) {
    case v1::POLICY_KEEP:
      return wire::Policy::kKeep;
    case v1::POLICY_OFFLOAD:
      return wire::Policy::kOffload;
    case v1::POLICY_DISCARD:
      return wire::Policy::kDiscard;
    default:
      return InvalidArgument("BAD_POLICY", "the policy of tag \"" + Shorten(tag) +
                                               "\" is none: use POLICY_KEEP, POLICY_OFFLOAD or "
                                               "POLICY_DISCARD")
          .With("tag", Shorten(tag))
          .With("policy", static_cast<int>(policy));
  }
}

Result<Bytes> ToBytes(int64_t bytes, const std::string& field) {
  if (bytes >= 0 && Bytes(bytes) < kAbsurd) return Bytes(bytes);
  return InvalidArgument("BAD_SIZE",
                         field + " is " + std::to_string(bytes) + ", which is no amount of memory")
      .With("field", field)
      .With("requested_bytes", bytes);
}

// --- answers

void FromDuration(Duration duration, google::protobuf::Duration& proto) {
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  proto.set_seconds(nanos / 1'000'000'000);
  proto.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
}

void FromOutcome(const WorkerOutcome& outcome, v1::WorkerResult& result) {
  result.set_worker_id(WorkerName(outcome.worker));
  result.set_worker_name(outcome.name);
  *result.mutable_status() = ToRpcStatus(outcome.status);
  result.set_device_bytes(outcome.device.value());
  result.set_copied_bytes(outcome.copied.value());
  result.set_unchanged_bytes(outcome.unchanged.value());
  result.set_discarded_bytes(outcome.discarded.value());
  result.set_segments(outcome.segments);
  v1::Timing& timing = *result.mutable_timing();
  FromDuration(outcome.times.total, *timing.mutable_total());
  FromDuration(outcome.times.quiesce, *timing.mutable_quiesce());
  FromDuration(outcome.times.digest, *timing.mutable_digest());
  FromDuration(outcome.times.copy, *timing.mutable_copy());
  FromDuration(outcome.times.worker, *timing.mutable_worker());
  FromDuration(outcome.times.handles, *timing.mutable_handles());
  result.set_rollback_pending(outcome.rollback_pending);
}

template <typename Response>
void FromAll(const std::vector<WorkerOutcome>& outcomes, Response& response) {
  Bytes device{};
  Bytes copied{};
  for (const WorkerOutcome& outcome : outcomes) {
    FromOutcome(outcome, *response.add_workers());
    device += outcome.device;
    copied += outcome.copied;
  }
  response.set_device_bytes(device.value());
  response.set_copied_bytes(copied.value());
}

v1::Quiescence FromQuiesce(wire::Quiesce quiesce) {
  switch (quiesce) {
    case wire::Quiesce::kNone:
      return v1::QUIESCENCE_OWN_CALL;
    case wire::Quiesce::kSynchronize:
      return v1::QUIESCENCE_SYNCHRONIZE;
    case wire::Quiesce::kGuard:
      return v1::QUIESCENCE_GUARD;
    case wire::Quiesce::kCallback:
      return v1::QUIESCENCE_CALLBACK;
  }
  return v1::QUIESCENCE_UNSPECIFIED;
}

void FromTag(const TagStats& stats, v1::TagUsage& usage) {
  usage.set_tag(stats.tag);
  usage.set_segments(stats.segments);
  usage.set_resident_bytes(stats.resident.value());
  usage.set_offloaded_bytes(stats.offloaded.value());
  usage.set_discarded_bytes(stats.discarded.value());
  usage.set_address_bytes(stats.addresses.value());
  usage.set_extents(stats.extents);
  usage.set_stranded_bytes(stats.stranded.value());
  usage.set_host_bytes(stats.host.value());
  usage.set_clean_bytes(stats.clean.value());
  usage.set_moving_segments(stats.moving);
  usage.set_lost_bytes(stats.lost.value());
}

void FromWorker(const WorkerStats& stats, v1::WorkerUsage& usage) {
  usage.set_id(WorkerName(stats.info.id));
  usage.set_name(stats.info.name);
  usage.set_pid(stats.info.peer.pid);
  usage.set_uid(stats.info.peer.uid);
  usage.set_gid(stats.info.peer.gid);
  usage.set_quiescence(FromQuiesce(stats.info.quiesce));
  usage.set_sleep_endpoint(stats.info.sleep_endpoint);
  usage.set_awaited(stats.info.awaited);
  for (const TagStats& tag : stats.tags) FromTag(tag, *usage.add_tags());
  if (stats.operation.has_value()) usage.set_operation_id(OperationName(*stats.operation));
  usage.set_reservation_id(stats.info.reservation);
  usage.set_reported_live_bytes(stats.info.reported_live.value());
  usage.set_reported_reserved_bytes(stats.info.reported_reserved.value());
  usage.set_rollback_pending(stats.unknown_attachment);
}

void FromParts(const std::vector<ReservationPart>& parts,
               google::protobuf::RepeatedPtrField<v1::ReservationPart>& protos) {
  for (const ReservationPart& part : parts) {
    v1::ReservationPart& proto = *protos.Add();
    proto.set_name(part.name);
    proto.set_device_bytes(part.device.value());
  }
}

void FromReservation(const ReservationStats& stats, const Now& now, v1::ReservationUsage& usage) {
  usage.set_id(stats.id);
  usage.set_name(stats.name);
  FromParts(stats.parts, *usage.mutable_parts());
  usage.set_device_bytes(stats.device.value());
  usage.set_drawn_device_bytes(stats.drawn_device.value());
  usage.set_surrendered_device_bytes(stats.surrendered_device.value());
  usage.set_host_bytes(stats.host.value());
  usage.set_drawn_host_bytes(stats.drawn_host.value());
  FromTimePoint(stats.expires, now, *usage.mutable_expire_time());
  usage.set_hold(stats.hold);
  usage.set_keep(stats.keep);
  usage.set_holders(stats.holders);
}

void FromWaiter(const WaiterStats& stats, int32_t position, const Now& now,
                v1::WaiterUsage& usage) {
  usage.set_id(stats.id);
  usage.set_position(position);
  usage.set_name(stats.name);
  usage.set_worker_id(stats.worker);
  FromParts(stats.parts, *usage.mutable_parts());
  usage.set_device_bytes(stats.device.value());
  usage.set_host_bytes(stats.host.value());
  FromTimePoint(stats.since, now, *usage.mutable_since_time());
  FromTimePoint(stats.deadline, now, *usage.mutable_deadline_time());
}

}  // namespace

Result<Duration> ToTtl(bool given, const google::protobuf::Duration& ttl) {
  if (!given) {
    return InvalidArgument("BAD_TTL", "ttl is missing: a reservation has to expire");
  }
  constexpr int64_t kMostSeconds = 315'576'000'000;
  constexpr int32_t kMostNanos = 999'999'999;
  const bool valid = ttl.seconds() >= -kMostSeconds && ttl.seconds() <= kMostSeconds &&
                     ttl.nanos() >= -kMostNanos && ttl.nanos() <= kMostNanos &&
                     (ttl.seconds() <= 0 || ttl.nanos() >= 0) &&
                     (ttl.seconds() >= 0 || ttl.nanos() <= 0);
  if (!valid) {
    return InvalidArgument("BAD_TTL", "ttl is not a valid google.protobuf.Duration")
        .With("seconds", ttl.seconds())
        .With("nanos", ttl.nanos());
  }
  // Durations count nanoseconds in 64 bits: about 292 years.
  constexpr int64_t kMostCounted = 9'000'000'000;
  const int64_t whole = std::min(std::max(ttl.seconds(), -kMostCounted), kMostCounted);
  return Duration(seconds(whole) + std::chrono::nanoseconds(ttl.nanos()));
}

void FromTimePoint(TimePoint time, const Now& now, google::protobuf::Timestamp& proto) {
  FromSystemTime(
      now.wall + std::chrono::duration_cast<std::chrono::system_clock::duration>(time - now.steady),
      proto);
}

void FromSystemTime(std::chrono::system_clock::time_point time,
                    google::protobuf::Timestamp& proto) {
  const auto wall = time.time_since_epoch();
  const auto whole = std::chrono::floor<seconds>(wall);
  proto.set_seconds(whole.count());
  proto.set_nanos(static_cast<int32_t>(std::chrono::nanoseconds(wall - whole).count()));
}

Result<SleepCommand> ToSleepCommand(const v1::SleepRequest& request, TimePoint deadline) {
  SleepCommand command;
  command.selector = ToSelector(request.selector());
  command.level = request.level();
  for (const auto& [tag, policy] : request.policies()) {
    TORPOR_ASSIGN_OR_RETURN(command.policies[tag], ToPolicy(tag, policy));
  }
  command.force = request.force();
  command.priority = request.priority();
  command.deadline = deadline;
  return command;
}

WakeCommand ToWakeCommand(const v1::WakeUpRequest& request, TimePoint deadline) {
  WakeCommand command;
  command.selector = ToSelector(request.selector());
  command.order.assign(request.order().begin(), request.order().end());
  command.reservation = request.reservation_id();
  command.priority = request.priority();
  command.deadline = deadline;
  return command;
}

Result<ReservationSpec> ToReservationSpec(const v1::ReserveRequest& request) {
  ReservationSpec spec;
  spec.name = request.name();
  for (const v1::ReservationPart& part : request.parts()) {
    TORPOR_ASSIGN_OR_RETURN(const Bytes device,
                            ToBytes(part.device_bytes(), "device_bytes of part " + part.name()));
    spec.parts.push_back({part.name(), device});
  }
  TORPOR_ASSIGN_OR_RETURN(spec.host, ToBytes(request.host_bytes(), "host_bytes"));
  TORPOR_ASSIGN_OR_RETURN(spec.ttl, ToTtl(request.has_ttl(), request.ttl()));
  spec.hold = request.hold();
  spec.keep = request.keep();
  return spec;
}

void FromOutcomes(const std::vector<WorkerOutcome>& outcomes, v1::SleepResponse& response) {
  FromAll(outcomes, response);
  Bytes unchanged{};
  for (const WorkerOutcome& outcome : outcomes) unchanged += outcome.unchanged;
  response.set_unchanged_bytes(unchanged.value());
}

void FromOutcomes(const std::vector<WorkerOutcome>& outcomes, v1::WakeUpResponse& response) {
  FromAll(outcomes, response);
}

void FromReport(const UsageReport& report, const Now& now, v1::UsageResponse& response) {
  const BudgetStats& budget = report.budget;
  v1::DeviceUsage& device = *response.mutable_device();
  device.set_uuid(report.device.uuid);
  device.set_name(report.device.name);
  device.set_driver(report.device.kind);
  device.set_total_bytes(budget.total.value());
  device.set_free_bytes(budget.free.value());
  device.set_resident_bytes(budget.resident.value());
  device.set_context_bytes(budget.context.value());
  device.set_other_bytes(budget.other.value());
  device.set_safety_reserve_bytes(budget.safety_reserve.value());
  device.set_promised_bytes(budget.promised.value());
  device.set_available_bytes(budget.available.value());
  device.set_overcommitted_bytes(budget.overcommitted.value());
  device.set_granularity_bytes(report.device.granularity.value());
  v1::HostPoolUsage& pool = *response.mutable_host_pool();
  pool.set_budget_bytes(report.pool.budget.value());
  pool.set_pinned_bytes(report.pool.pinned.value());
  pool.set_used_bytes(report.pool.used.value());
  pool.set_promised_bytes(report.pool_promised.value());
  pool.set_clean_bytes(report.pool_clean.value());
  pool.set_kind(report.pool.kind);
  pool.set_pinning(report.pool.pinning);
  pool.set_refused_bytes(report.pool.refused.value());
  if (!report.pool.last_error.ok()) {
    *pool.mutable_pinning_error() = ToRpcStatus(report.pool.last_error);
  }
  *response.mutable_protection() = ToRpcStatus(report.protection);
  *response.mutable_health() = ToRpcStatus(report.health);
  for (const WorkerStats& worker : report.workers) FromWorker(worker, *response.add_workers());
  for (const ReservationStats& reservation : report.reservations) {
    FromReservation(reservation, now, *response.add_reservations());
  }
  for (size_t i = 0; i < report.queue.size(); ++i) {
    FromWaiter(report.queue[i], static_cast<int32_t>(i + 1), now, *response.add_queue());
  }
}

void KeepOwn(const Owner& owner, const UsageReport& report, v1::UsageResponse& response) {
  std::set<std::string> workers;
  const auto keep = [](const auto& all, auto& shown, const auto& is_own) {
    std::remove_reference_t<decltype(shown)> own;
    for (size_t i = 0; i < all.size(); ++i) {
      if (is_own(all[i])) own.Add()->Swap(shown.Mutable(static_cast<int>(i)));
    }
    shown.Swap(&own);
  };
  keep(report.workers, *response.mutable_workers(), [&](const WorkerStats& worker) {
    if (owner.uid != worker.info.peer.uid) return false;
    workers.insert(WorkerName(worker.info.id));
    return true;
  });
  keep(report.reservations, *response.mutable_reservations(),
       [&](const ReservationStats& reservation) { return reservation.owner == owner.name; });
  keep(report.queue, *response.mutable_queue(), [&](const WaiterStats& waiter) {
    return waiter.worker.empty() ? waiter.owner == owner.name : workers.count(waiter.worker) > 0;
  });
}

void FromReserveResult(const ReserveResult& result, Bytes requested, const Now& now,
                       v1::ReserveResponse& response) {
  response.set_reservation_id(result.id);
  FromTimePoint(result.expires, now, *response.mutable_expire_time());
  v1::Budget& budget = *response.mutable_budget();
  budget.set_total_bytes(result.budget.total.value());
  budget.set_resident_bytes(result.budget.resident.value());
  budget.set_context_bytes(result.budget.context.value());
  budget.set_other_bytes(result.budget.other.value());
  budget.set_promised_bytes(result.budget.promised.value());
  budget.set_safety_reserve_bytes(result.budget.safety_reserve.value());
  budget.set_pending_bytes(result.budget.pending.value());
  budget.set_available_bytes(result.budget.available.value());
  budget.set_requested_bytes(requested.value());
}

}  // namespace torpor
