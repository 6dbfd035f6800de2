#include "client/ctl/print.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string_view>
#include <type_traits>
#include <vector>

#include "client/ctl/table.h"
#include "google/rpc/error_details.pb.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cli/flag_set.h"

namespace torpor::ctl {
namespace {

std::string Size(int64_t bytes) { return FormatBytes(Bytes(bytes)); }

Duration ToDuration(const google::protobuf::Duration& duration) {
  return seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

Duration Until(const google::protobuf::Timestamp& time, std::chrono::system_clock::time_point now) {
  return seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos()) -
         std::chrono::duration_cast<Duration>(now.time_since_epoch());
}

// "in 28.4s"
std::string Expiry(const google::protobuf::Timestamp& time,
                   std::chrono::system_clock::time_point now) {
  const Duration left = Until(time, now);
  return left <= Duration::zero() ? "over" : "in " + FormatDuration(left);
}

google::rpc::ErrorInfo InfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const google::protobuf::Any& detail : status.details()) {
    if (detail.UnpackTo(&info)) break;
  }
  return info;
}

// "GUARD"
std::string QuiescenceName(v1::Quiescence quiescence) {
  constexpr std::string_view kPrefix = "QUIESCENCE_";
  std::string name = v1::Quiescence_Name(quiescence);
  if (name.rfind(kPrefix, 0) == 0) name.erase(0, kPrefix.size());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '_' ? '-' : std::tolower(c); });
  return name;
}

std::string PrintDevice(const v1::DeviceUsage& device, const v1::HostPoolUsage& pool) {
  std::string text = "Device " + device.uuid() + " (" + device.name() + ", " + device.driver() +
                     "): " + Size(device.total_bytes()) + "\n";
  Table memory({">FREE", ">RESIDENT", ">CONTEXT", ">OTHER", ">PROMISED", ">RESERVE", ">AVAILABLE"});
  memory.AddRow({Size(device.free_bytes()), Size(device.resident_bytes()),
                 Size(device.context_bytes()), Size(device.other_bytes()),
                 Size(device.promised_bytes()), Size(device.safety_reserve_bytes()),
                 Size(device.available_bytes())});
  text += memory.ToString();
  if (device.overcommitted_bytes() > 0) {
    text += "OVERCOMMITTED by " + Size(device.overcommitted_bytes()) +
            ": promises exceed what is there\n";
  }
  text += "\nHost pool" + (pool.kind().empty() ? "" : " (" + pool.kind() + ")") + ": " +
          Size(pool.used_bytes()) + " used of " + Size(pool.budget_bytes()) + ", " +
          Size(pool.clean_bytes()) + " clean, " + Size(pool.pinned_bytes()) +
          (pool.pinning() ? " pinned so far, " : " pinned, ") + Size(pool.promised_bytes()) +
          " promised\n";
  if (pool.refused_bytes() > 0) {
    text +=
        "NOT PINNED: " + Size(pool.refused_bytes()) + ": " + pool.pinning_error().message() + "\n";
  }
  return text;
}

std::string PrintWorkers(const v1::UsageResponse& usage) {
  if (usage.workers().empty()) return "\nNo workers.\n";
  Table table({"WORKER", "NAME", ">PID", "QUIESCED BY", "TAG", ">SEGMENTS", ">RESIDENT",
               ">OFFLOADED", ">DISCARDED", ">HOST", ">CLEAN", "NOW"});
  for (const v1::WorkerUsage& worker : usage.workers()) {
    const std::string doing = worker.rollback_pending()       ? "rollback pending"
                              : worker.operation_id().empty() ? ""
                                                              : worker.operation_id();
    std::vector<std::string> head = {worker.id(), worker.name(), std::to_string(worker.pid()),
                                     QuiescenceName(worker.quiescence())};
    if (worker.tags().empty()) {
      head.insert(head.end(), {"-", "0", "", "", "", "", "", doing});
      table.AddRow(head);
    }
    for (const v1::TagUsage& tag : worker.tags()) {
      const std::string now =
          tag.lost_bytes() == 0 ? doing : Size(tag.lost_bytes()) + " lost " + doing;
      std::vector<std::string> row = head;
      row.insert(row.end(), {tag.tag(), std::to_string(tag.segments()), Size(tag.resident_bytes()),
                             Size(tag.offloaded_bytes()), Size(tag.discarded_bytes()),
                             Size(tag.host_bytes()), Size(tag.clean_bytes()), now});
      table.AddRow(row);
      head.assign(4, "");
    }
  }
  return "\n" + table.ToString();
}

std::string PrintEndpoints(const v1::UsageResponse& usage) {
  Table table({"WORKER", "NAME", "SLEEPS BY ITSELF ON"});
  for (const v1::WorkerUsage& worker : usage.workers()) {
    if (worker.sleep_endpoint().empty()) continue;
    table.AddRow({worker.id(), worker.name(), worker.sleep_endpoint()});
  }
  return table.empty() ? "" : "\n" + table.ToString();
}

std::string PrintReservations(const v1::UsageResponse& usage,
                              std::chrono::system_clock::time_point now) {
  if (usage.reservations().empty()) return "";
  Table table({"RESERVATION", "NAME", ">DEVICE", ">DRAWN", ">HOST", ">HOST DRAWN", "EXPIRES",
               "PARTS", ">WORKERS", "KIND"});
  for (const v1::ReservationUsage& reservation : usage.reservations()) {
    std::string parts;
    for (const v1::ReservationPart& part : reservation.parts()) {
      parts += (parts.empty() ? "" : ", ") + part.name() + " " + Size(part.device_bytes());
    }
    std::string kind = reservation.hold() ? "hold" : "";
    if (reservation.keep()) kind += kind.empty() ? "keep" : ", keep";
    table.AddRow({reservation.id(), reservation.name(), Size(reservation.device_bytes()),
                  Size(reservation.drawn_device_bytes()), Size(reservation.host_bytes()),
                  Size(reservation.drawn_host_bytes()), Expiry(reservation.expire_time(), now),
                  parts, std::to_string(reservation.holders()), kind});
  }
  return "\n" + table.ToString();
}

std::string PrintQueue(const v1::UsageResponse& usage, std::chrono::system_clock::time_point now) {
  if (usage.queue().empty()) return "";
  Table table({"QUEUE", "ID", "NAME", "WORKER", ">DEVICE", ">HOST", ">WAITED", "GIVES UP"});
  for (const v1::WaiterUsage& waiter : usage.queue()) {
    const Duration waited = std::max(Duration::zero(), -Until(waiter.since_time(), now));
    table.AddRow({std::to_string(waiter.position()), waiter.id(), waiter.name(),
                  waiter.worker_id().empty() ? "-" : waiter.worker_id(),
                  Size(waiter.device_bytes()), Size(waiter.host_bytes()), FormatDuration(waited),
                  Expiry(waiter.deadline_time(), now)});
  }
  return "\n" + table.ToString();
}

// "12.3 GB/s", or nothing where it would mean nothing.
std::string Speed(int64_t bytes, const google::protobuf::Duration& duration) {
  const double time = std::chrono::duration<double>(ToDuration(duration)).count();
  if (bytes < (1 << 20) || time <= 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GB/s", static_cast<double>(bytes) / time / 1e9);
  return text;
}

template <typename Response>
std::string PrintResults(const Response& response, const char* device, const char* discarded) {
  constexpr bool kSleep = std::is_same_v<Response, v1::SleepResponse>;
  std::vector<std::string> columns = {"WORKER", "NAME", ">SEGMENTS", device, ">COPIED"};
  if (kSleep) columns.emplace_back(">UNCHANGED");
  columns.insert(columns.end(), {discarded, ">TIME", ">COPY", "RESULT"});
  Table table(columns);
  std::string failures;
  for (const v1::WorkerResult& result : response.workers()) {
    const bool ok = result.status().code() == 0;
    std::vector<std::string> row = {result.worker_id(), result.worker_name(),
                                    std::to_string(result.segments()), Size(result.device_bytes()),
                                    Size(result.copied_bytes())};
    if (kSleep) row.push_back(Size(result.unchanged_bytes()));
    row.insert(row.end(),
               {Size(result.discarded_bytes()), FormatDuration(ToDuration(result.timing().total())),
                Speed(result.copied_bytes(), result.timing().copy()),
                ok ? "ok" : InfoOf(result.status()).reason()});
    table.AddRow(row);
    if (ok) continue;
    failures += "\n" + result.worker_id() + ": " + PrintError(result.status());
    if (result.rollback_pending()) failures += "  rollback pending\n";
  }
  return table.ToString() + failures;
}

}  // namespace

std::string Print(const v1::UsageResponse& usage, std::chrono::system_clock::time_point now) {
  return PrintDevice(usage.device(), usage.host_pool()) + PrintWorkers(usage) +
         PrintEndpoints(usage) + PrintReservations(usage, now) + PrintQueue(usage, now);
}

std::string Print(const v1::SleepResponse& response) {
  return PrintResults(response, ">FREED", ">DROPPED") + "Freed " + Size(response.device_bytes()) +
         " of device memory.\n";
}

std::string Print(const v1::WakeUpResponse& response) {
  return PrintResults(response, ">TAKEN", ">CLEARED") + "Took " + Size(response.device_bytes()) +
         " of device memory.\n";
}

std::string Print(const v1::ReserveResponse& response, std::chrono::system_clock::time_point now) {
  return response.reservation_id() + ": " + Size(response.budget().requested_bytes()) + " of the " +
         Size(response.budget().available_bytes()) + " available, expires " +
         Expiry(response.expire_time(), now) + "\n";
}

std::string Print(const v1::RenewResponse& response, std::chrono::system_clock::time_point now) {
  return "Expires " + Expiry(response.expire_time(), now) + ".\n";
}

std::string Print(const v1::ReleaseResponse& response) {
  return "Came free: " + Size(response.device_bytes()) + " device, " + Size(response.host_bytes()) +
         " host.\n";
}

std::string PrintError(const google::rpc::Status& status) {
  const google::rpc::ErrorInfo info = InfoOf(status);
  std::string text(CodeName(static_cast<Code>(status.code())));
  if (!info.reason().empty()) text += " " + info.reason();
  text += ": " + status.message() + "\n";
  size_t width = 0;
  for (const auto& entry : info.metadata()) width = std::max(width, entry.first.size());
  // A map of protobuf has no order.
  for (const auto& [key, value] :
       std::map<std::string, std::string>(info.metadata().begin(), info.metadata().end())) {
    text.append("  ").append(key).append(width - key.size() + 2, ' ').append(value);
    constexpr std::string_view kBytes = "_bytes";
    const bool is_size = key.size() > kBytes.size() &&
                         key.compare(key.size() - kBytes.size(), kBytes.size(), kBytes) == 0;
    if (const Result<Bytes> bytes = ParseBytes(value); is_size && bytes.ok()) {
      text += " (" + FormatBytes(*bytes) + ")";
    }
    text += "\n";
  }
  return text;
}

std::string PrintJsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  return text;
}

std::string PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return "{}\n";
  }
  return text;
}

}  // namespace torpor::ctl
