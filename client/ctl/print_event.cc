#include "client/ctl/print_event.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "client/ctl/progress.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor::ctl {
namespace {

using TimeStamp = google::protobuf::Timestamp;

std::string Size(int64_t bytes) { return FormatBytes(Bytes(bytes)); }

// "rolled back" of OPERATION_CHANGE_ROLLED_BACK.
std::string Word(const std::string& name, std::string_view prefix) {
  std::string word = name.size() > prefix.size() ? name.substr(prefix.size()) : "?";
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return c == '_' ? ' ' : std::tolower(c); });
  return word;
}

std::string Worker(const std::string& id, const std::string& name) {
  return name.empty() ? id : id + " (" + name + ")";
}

std::string Error(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const google::protobuf::Any& detail : status.details()) {
    if (detail.UnpackTo(&info)) break;
  }
  std::string text(CodeName(static_cast<Code>(status.code())));
  if (!info.reason().empty()) text += " " + info.reason();
  return text + ": " + status.message();
}

std::string LocalTime(const TimeStamp& time) {
  const std::time_t whole = time.seconds();
  std::tm local{};
  ::localtime_r(&whole, &local);
  char text[32];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", local.tm_hour, local.tm_min, local.tm_sec,
                time.nanos() / 1'000'000);
  return text;
}

std::string Print(const v1::LostEvents& lost) {
  if (lost.daemon_restarted()) return "events lost: the daemon has restarted";
  return std::to_string(lost.events()) + " events lost";
}

std::string Print(const v1::SessionEvent& event) {
  std::string text = Worker(event.worker_id(), event.worker_name()) + " session " +
                     Word(v1::SessionChange_Name(event.change()), "SESSION_CHANGE_") + ", pid " +
                     std::to_string(event.pid());
  if (event.change() == v1::SESSION_CHANGE_CLOSED) text += ": " + Error(event.status());
  return text;
}

std::string Kind(v1::OperationKind kind) {
  return kind == v1::OPERATION_KIND_WAKE_UP ? "wake" : "sleep";
}

std::string Print(const v1::OperationEvent& event) {
  const bool sleep = event.kind() != v1::OPERATION_KIND_WAKE_UP;
  std::string text = Worker(event.worker_id(), event.worker_name()) + " " + event.operation_id() +
                     " " + Kind(event.kind()) + " " +
                     Word(v1::OperationChange_Name(event.change()), "OPERATION_CHANGE_");
  if (event.change() == v1::OPERATION_CHANGE_ROLLED_BACK) return text;
  if (event.status().code() != 0) {
    text += ": " + Error(event.status());
    if (event.rollback_pending()) text += ", rollback pending";
    return text;
  }
  text += ": " + std::to_string(event.segments()) + " segments, " + Size(event.device_bytes());
  if (event.change() == v1::OPERATION_CHANGE_STARTED) {
    return text + (sleep ? " to free, " : " to take, ") + Size(event.copied_bytes()) +
           " to copy, " + Size(event.discarded_bytes()) + (sleep ? " to drop" : " to clear");
  }
  return text + (sleep ? " freed, " : " taken, ") + Size(event.copied_bytes()) + " copied, " +
         Size(event.discarded_bytes()) + (sleep ? " dropped" : " cleared");
}

std::string Print(const v1::ProgressEvent& event) {
  return Worker(event.worker_id(), event.worker_name()) + " " + event.operation_id() + " " +
         Kind(event.kind()) + " " + DoingText(event) +
         (event.total_bytes() == 0 ? ""
                                   : ": " + ShareText(event.done_bytes(), event.total_bytes()));
}

std::string Print(const v1::SegmentsEvent& event) {
  return Worker(event.worker_id(), event.worker_name()) + " " + event.operation_id() + " " +
         event.tag() + ": " + std::to_string(event.segments()) + " segments, " +
         Size(event.segment_bytes()) + ", " +
         Word(v1::SegmentState_Name(event.from_state()), "SEGMENT_STATE_") + " -> " +
         Word(v1::SegmentState_Name(event.to_state()), "SEGMENT_STATE_");
}

std::string Print(const v1::ReservationEvent& event) {
  std::string text = event.reservation_id() + " (" + event.name() + ") reservation " +
                     Word(v1::ReservationChange_Name(event.change()), "RESERVATION_CHANGE_");
  if (event.change() == v1::RESERVATION_CHANGE_DRAWN_OUT) return text;
  return text + ": " + Size(event.device_bytes()) + " device, " + Size(event.host_bytes()) +
         " host";
}

std::string Print(const v1::QueueEvent& event) {
  std::string text = event.waiter_id();
  if (!event.name().empty()) text += " (" + event.name() + ")";
  if (!event.worker_id().empty()) text += " " + Worker(event.worker_id(), event.worker_name());
  text += " queue " + Word(v1::QueueChange_Name(event.change()), "QUEUE_CHANGE_") + ": " +
          Size(event.device_bytes()) + " device, " + Size(event.host_bytes()) + " host, " +
          std::to_string(event.waiting()) + " waiting";
  if (event.change() == v1::QUEUE_CHANGE_LEFT) text += ": " + Error(event.status());
  return text;
}

std::string Print(const v1::PressureEvent& event) {
  std::string text = std::string("pressure: memory ") + (event.low() ? "low" : "not low") + ", " +
                     Size(event.available_bytes()) + " available";
  if (event.overcommitted()) text += ", overcommitted by " + Size(event.overcommitted_bytes());
  return text;
}

std::string PrintBody(const v1::WatchResponse& response) {
  switch (response.event_case()) {
    case v1::WatchResponse::kLost:
      return Print(response.lost());
    case v1::WatchResponse::kSession:
      return Print(response.session());
    case v1::WatchResponse::kOperation:
      return Print(response.operation());
    case v1::WatchResponse::kProgress:
      return Print(response.progress());
    case v1::WatchResponse::kSegments:
      return Print(response.segments());
    case v1::WatchResponse::kReservation:
      return Print(response.reservation());
    case v1::WatchResponse::kQueue:
      return Print(response.queue());
    case v1::WatchResponse::kPressure:
      return Print(response.pressure());
    case v1::WatchResponse::EVENT_NOT_SET:
      break;
  }
  return "";
}

}  // namespace

std::string PrintEvent(const v1::WatchResponse& response) {
  const std::string body = PrintBody(response);
  return body.empty() ? body : LocalTime(response.time()) + " " + body;
}

}  // namespace torpor::ctl
