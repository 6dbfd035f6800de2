#include "daemon/service/event_conversions.h"

#include <charconv>
#include <chrono>
#include <string_view>
#include <variant>

#include "daemon/memory/inventory.h"
#include "daemon/service/grpc_status.h"
#include "lib/base/units.h"

namespace torpor {
namespace {

v1::OperationKind FromKind(OperationKind kind) {
  return kind == OperationKind::kSleep ? v1::OPERATION_KIND_SLEEP : v1::OPERATION_KIND_WAKE_UP;
}

v1::SegmentState FromState(SegmentsEvent::State state) {
  switch (state) {
    case SegmentsEvent::State::kResident:
      return v1::SEGMENT_STATE_RESIDENT;
    case SegmentsEvent::State::kOffloaded:
      return v1::SEGMENT_STATE_OFFLOADED;
    case SegmentsEvent::State::kDiscarded:
      return v1::SEGMENT_STATE_DISCARDED;
  }
  return v1::SEGMENT_STATE_UNSPECIFIED;
}

template <typename Proto, typename Value>
void FromWorker(const Value& event, Proto& proto) {
  if (event.worker != WorkerId()) proto.set_worker_id(WorkerName(event.worker));
  proto.set_worker_name(event.worker_name);
}

void FromBody(const SessionEvent& event, v1::WatchResponse& response) {
  v1::SessionEvent& proto = *response.mutable_session();
  switch (event.change) {
    case SessionEvent::Change::kOpened:
      proto.set_change(v1::SESSION_CHANGE_OPENED);
      break;
    case SessionEvent::Change::kClosed:
      proto.set_change(v1::SESSION_CHANGE_CLOSED);
      break;
    case SessionEvent::Change::kReturned:
      proto.set_change(v1::SESSION_CHANGE_RETURNED);
      break;
  }
  FromWorker(event, proto);
  proto.set_pid(event.pid);
  if (event.change == SessionEvent::Change::kClosed) {
    *proto.mutable_status() = ToRpcStatus(event.why);
  }
}

void FromBody(const OperationEvent& event, v1::WatchResponse& response) {
  v1::OperationEvent& proto = *response.mutable_operation();
  switch (event.change) {
    case OperationEvent::Change::kStarted:
      proto.set_change(v1::OPERATION_CHANGE_STARTED);
      break;
    case OperationEvent::Change::kCommitted:
      proto.set_change(v1::OPERATION_CHANGE_COMMITTED);
      break;
    case OperationEvent::Change::kEnded:
      proto.set_change(v1::OPERATION_CHANGE_ENDED);
      *proto.mutable_status() = ToRpcStatus(event.status);
      break;
    case OperationEvent::Change::kRolledBack:
      proto.set_change(v1::OPERATION_CHANGE_ROLLED_BACK);
      break;
  }
  proto.set_kind(FromKind(event.kind));
  proto.set_operation_id(OperationName(event.operation));
  FromWorker(event, proto);
  proto.set_segments(event.segments);
  proto.set_device_bytes(event.device.value());
  proto.set_copied_bytes(event.copied.value());
  proto.set_discarded_bytes(event.discarded.value());
  proto.set_rollback_pending(event.rollback_pending);
}

void FromBody(const ProgressEvent& event, v1::WatchResponse& response) {
  v1::ProgressEvent& proto = *response.mutable_progress();
  switch (event.phase) {
    case ProgressEvent::Phase::kQuiesce:
      proto.set_phase(v1::OPERATION_PHASE_QUIESCE);
      break;
    case ProgressEvent::Phase::kCopy:
      proto.set_phase(v1::OPERATION_PHASE_COPY);
      break;
    case ProgressEvent::Phase::kWorker:
      proto.set_phase(v1::OPERATION_PHASE_WORKER);
      break;
    case ProgressEvent::Phase::kHandles:
      proto.set_phase(v1::OPERATION_PHASE_HANDLES);
      break;
  }
  proto.set_kind(FromKind(event.kind));
  proto.set_operation_id(OperationName(event.operation));
  FromWorker(event, proto);
  proto.set_tag(event.tag);
  proto.set_done_bytes(event.done.value());
  proto.set_total_bytes(event.total.value());
}

void FromBody(const SegmentsEvent& event, v1::WatchResponse& response) {
  v1::SegmentsEvent& proto = *response.mutable_segments();
  proto.set_operation_id(OperationName(event.operation));
  FromWorker(event, proto);
  proto.set_tag(event.tag);
  proto.set_from_state(FromState(event.from));
  proto.set_to_state(FromState(event.to));
  proto.set_segments(event.segments);
  proto.set_segment_bytes(event.size.value());
}

void FromBody(const ReservationEvent& event, v1::WatchResponse& response) {
  v1::ReservationEvent& proto = *response.mutable_reservation();
  switch (event.change) {
    case ReservationEvent::Change::kMade:
      proto.set_change(v1::RESERVATION_CHANGE_MADE);
      break;
    case ReservationEvent::Change::kRenewed:
      proto.set_change(v1::RESERVATION_CHANGE_RENEWED);
      break;
    case ReservationEvent::Change::kDrawnOut:
      proto.set_change(v1::RESERVATION_CHANGE_DRAWN_OUT);
      break;
    case ReservationEvent::Change::kReleased:
      proto.set_change(v1::RESERVATION_CHANGE_RELEASED);
      break;
    case ReservationEvent::Change::kExpired:
      proto.set_change(v1::RESERVATION_CHANGE_EXPIRED);
      break;
    case ReservationEvent::Change::kEnded:
      proto.set_change(v1::RESERVATION_CHANGE_ENDED);
      break;
  }
  proto.set_reservation_id(event.id);
  proto.set_name(event.name);
  proto.set_device_bytes(event.device.value());
  proto.set_host_bytes(event.host.value());
}

void FromBody(const QueueEvent& event, v1::WatchResponse& response) {
  v1::QueueEvent& proto = *response.mutable_queue();
  switch (event.change) {
    case QueueEvent::Change::kEntered:
      proto.set_change(v1::QUEUE_CHANGE_ENTERED);
      break;
    case QueueEvent::Change::kGranted:
      proto.set_change(v1::QUEUE_CHANGE_GRANTED);
      break;
    case QueueEvent::Change::kLeft:
      proto.set_change(v1::QUEUE_CHANGE_LEFT);
      *proto.mutable_status() = ToRpcStatus(event.status);
      break;
  }
  proto.set_waiter_id(event.waiter);
  proto.set_name(event.name);
  FromWorker(event, proto);
  proto.set_device_bytes(event.device.value());
  proto.set_host_bytes(event.host.value());
  proto.set_waiting(event.waiting);
}

void FromBody(const PressureEvent& event, v1::WatchResponse& response) {
  v1::PressureEvent& proto = *response.mutable_pressure();
  proto.set_low(event.low);
  proto.set_overcommitted(event.overcommitted);
  proto.set_available_bytes(event.available.value());
  proto.set_threshold_bytes(event.threshold.value());
  proto.set_overcommitted_bytes(event.overcommitted_by.value());
}

// Each kind beside the event that it is.
struct KindOf {
  int operator()(const SessionEvent&) const { return v1::EVENT_KIND_SESSION; }
  int operator()(const OperationEvent&) const { return v1::EVENT_KIND_OPERATION; }
  int operator()(const ProgressEvent&) const { return v1::EVENT_KIND_PROGRESS; }
  int operator()(const SegmentsEvent&) const { return v1::EVENT_KIND_SEGMENTS; }
  int operator()(const ReservationEvent&) const { return v1::EVENT_KIND_RESERVATION; }
  int operator()(const QueueEvent&) const { return v1::EVENT_KIND_QUEUE; }
  int operator()(const PressureEvent&) const { return v1::EVENT_KIND_PRESSURE; }
};

struct IsOfOneOf {
  const std::set<std::string>& workers;

  bool operator()(const ReservationEvent&) const { return false; }
  bool operator()(const PressureEvent&) const { return false; }
  template <typename OfWorker>
  bool operator()(const OfWorker& event) const {
    return event.worker != WorkerId() &&
           (workers.count(event.worker_name) != 0 || workers.count(WorkerName(event.worker)) != 0);
  }
};

Status BadCursor(const std::string& text) {
  return InvalidArgument("BAD_CURSOR", "\"" + text.substr(0, 64) + "\" is no cursor of a Watch")
      .With("length", text.size());
}

Result<EventCursor> ToCursor(const std::string& text) {
  constexpr size_t kIdLength = 16;
  if (text.size() < kIdLength + 2 || text[kIdLength] != ':') return BadCursor(text);
  const std::string_view id = std::string_view(text).substr(0, kIdLength);
  if (id.find_first_not_of("0123456789abcdef") != std::string_view::npos) return BadCursor(text);
  EventCursor cursor;
  cursor.boot_id = std::string(id);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + kIdLength + 1, end, cursor.position);
  if (error != std::errc() || stop != end) return BadCursor(text);
  return cursor;
}

}  // namespace

std::string ToString(const EventCursor& cursor) {
  return cursor.boot_id + ":" + std::to_string(cursor.position);
}

bool WatchCommand::Wants(const Event& event) const {
  if (!kinds.empty() && kinds.count(std::visit(KindOf(), event.body)) == 0) return false;
  return workers.empty() || std::visit(IsOfOneOf{workers}, event.body);
}

Result<WatchCommand> ToWatchCommand(const v1::WatchRequest& request) {
  WatchCommand command;
  for (const int kind : request.kinds()) {
    if (kind == v1::EVENT_KIND_UNSPECIFIED || !v1::EventKind_IsValid(kind)) {
      return InvalidArgument("BAD_EVENT_KIND", "there is no such kind of event").With("kind", kind);
    }
    command.kinds.insert(kind);
  }
  for (const std::string& worker : request.workers()) {
    TORPOR_RETURN_IF_ERROR(CheckName(worker, "worker name", "BAD_WORKER_NAME"));
    command.workers.insert(worker);
  }
  if (!request.cursor().empty()) {
    TORPOR_ASSIGN_OR_RETURN(command.cursor, ToCursor(request.cursor()));
  }
  return command;
}

void FromEvent(const Event& event, v1::WatchResponse& response) {
  const auto nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(event.time.time_since_epoch()).count();
  response.mutable_time()->set_seconds(nanos / 1'000'000'000);
  response.mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  std::visit([&](const auto& body) { FromBody(body, response); }, event.body);
}

}  // namespace torpor
