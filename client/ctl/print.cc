#include "client/ctl/print.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string_view>
#include <type_traits>
#include <utility>
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

// Why what workers have does not outlive the daemon; empty where it does, or was not meant to: a
// daemon that was started without a keeper will never be protected.
std::string WhyUnprotected(const v1::UsageResponse& usage) {
  if (usage.protection().code() == 0) return "";
  std::string reason = ReasonOf(usage.protection());
  return reason == "NO_KEEPER" ? "" : reason;
}

// What the daemon says that it lacks, a line for each.
std::string PrintConditions(const v1::UsageResponse& usage) {
  std::string text;
  if (usage.health().code() != 0) {
    text += "NOT SERVING: " + ReasonOf(usage.health()) + ": " + usage.health().message() + "\n";
  }
  if (const std::string reason = WhyUnprotected(usage); !reason.empty()) {
    text += "NOT PROTECTED: " + reason + ": " + usage.protection().message() + "\n";
  }
  return text;
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

// A table in which a first column may say whose a row is.
class DaemonTable {
 public:
  // An empty `heading`: all are of one daemon, and there is no such column.
  DaemonTable(const std::string& heading, std::vector<std::string> headings)
      : named_(!heading.empty()), table_(With(heading, std::move(headings))) {}

  void AddRow(const std::string& daemon, std::vector<std::string> cells) {
    table_.AddRow(With(daemon, std::move(cells)));
  }
  bool empty() const { return table_.empty(); }
  std::string ToString() const { return table_.ToString(); }

 private:
  std::vector<std::string> With(const std::string& first, std::vector<std::string> cells) const {
    if (named_) cells.insert(cells.begin(), first);
    return cells;
  }
  const bool named_;
  Table table_;
};

using UsageAnswers = std::vector<Answer<v1::UsageResponse>>;

// Calls `add` with the daemon and the item for each item of the answers' lists.
template <typename Items, typename Add>
void ForEach(const UsageAnswers& answers, const Items& (v1::UsageResponse::*items)() const,
             const Add& add) {
  for (const auto& answer : answers) {
    for (const auto& item : (answer.response.*items)()) add(answer.daemon, item);
  }
}

std::string PrintWorkers(const std::string& heading, const UsageAnswers& answers) {
  DaemonTable table(heading, {"WORKER", "NAME", ">PID", "QUIESCED BY", "TAG", ">SEGMENTS",
                              ">RESIDENT", ">OFFLOADED", ">DISCARDED", ">HOST", ">CLEAN", "NOW"});
  ForEach(answers, &v1::UsageResponse::workers, [&](const auto& daemon, const auto& worker) {
    const std::string doing = worker.rollback_pending()       ? "rollback pending"
                              : worker.operation_id().empty() ? ""
                                                              : worker.operation_id();
    std::vector<std::string> head = {worker.id(), worker.name(), std::to_string(worker.pid()),
                                     QuiescenceName(worker.quiescence())};
    if (worker.tags().empty()) {
      head.insert(head.end(), {"-", "0", "", "", "", "", "", doing});
      table.AddRow(daemon, head);
    }
    for (const v1::TagUsage& tag : worker.tags()) {
      const std::string now =
          tag.lost_bytes() == 0 ? doing : Size(tag.lost_bytes()) + " lost " + doing;
      std::vector<std::string> row = head;
      row.insert(row.end(), {tag.tag(), std::to_string(tag.segments()), Size(tag.resident_bytes()),
                             Size(tag.offloaded_bytes()), Size(tag.discarded_bytes()),
                             Size(tag.host_bytes()), Size(tag.clean_bytes()), now});
      table.AddRow(daemon, row);
      head.assign(4, "");
    }
  });
  return table.empty() ? "\nNo workers.\n" : "\n" + table.ToString();
}

std::string PrintEndpoints(const std::string& heading, const UsageAnswers& answers) {
  DaemonTable table(heading, {"WORKER", "NAME", "SLEEPS BY ITSELF ON"});
  ForEach(answers, &v1::UsageResponse::workers, [&](const auto& daemon, const auto& worker) {
    if (worker.sleep_endpoint().empty()) return;
    table.AddRow(daemon, {worker.id(), worker.name(), worker.sleep_endpoint()});
  });
  return table.empty() ? "" : "\n" + table.ToString();
}

std::string PrintReservations(const std::string& heading, const UsageAnswers& answers,
                              std::chrono::system_clock::time_point now) {
  DaemonTable table(heading, {"RESERVATION", "NAME", ">DEVICE", ">DRAWN", ">HOST", ">HOST DRAWN",
                              "EXPIRES", "PARTS", ">WORKERS", "KIND"});
  const auto add = [&](const std::string& daemon, const v1::ReservationUsage& reservation) {
    std::string parts;
    for (const v1::ReservationPart& part : reservation.parts()) {
      parts += (parts.empty() ? "" : ", ") + part.name() + " " + Size(part.device_bytes());
    }
    std::string kind = reservation.hold() ? "hold" : "";
    if (reservation.keep()) kind += kind.empty() ? "keep" : ", keep";
    table.AddRow(daemon,
                 {reservation.id(), reservation.name(), Size(reservation.device_bytes()),
                  Size(reservation.drawn_device_bytes()), Size(reservation.host_bytes()),
                  Size(reservation.drawn_host_bytes()), Expiry(reservation.expire_time(), now),
                  parts, std::to_string(reservation.holders()), kind});
  };
  ForEach(answers, &v1::UsageResponse::reservations, add);
  return table.empty() ? "" : "\n" + table.ToString();
}

std::string PrintQueue(const std::string& heading, const UsageAnswers& answers,
                       std::chrono::system_clock::time_point now) {
  DaemonTable table(heading,
                    {"QUEUE", "ID", "NAME", "WORKER", ">DEVICE", ">HOST", ">WAITED", "GIVES UP"});
  const auto add = [&](const std::string& daemon, const v1::WaiterUsage& waiter) {
    const Duration waited = std::max(Duration::zero(), -Until(waiter.since_time(), now));
    table.AddRow(daemon, {std::to_string(waiter.position()), waiter.id(), waiter.name(),
                          waiter.worker_id().empty() ? "-" : waiter.worker_id(),
                          Size(waiter.device_bytes()), Size(waiter.host_bytes()),
                          FormatDuration(waited), Expiry(waiter.deadline_time(), now)});
  };
  ForEach(answers, &v1::UsageResponse::queue, add);
  return table.empty() ? "" : "\n" + table.ToString();
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
std::string PrintResults(const std::string& heading, const std::vector<Answer<Response>>& answers,
                         const char* device, const char* discarded) {
  constexpr bool kSleep = std::is_same_v<Response, v1::SleepResponse>;
  std::vector<std::string> columns = {"WORKER", "NAME", ">SEGMENTS", device, ">COPIED"};
  if (kSleep) columns.emplace_back(">UNCHANGED");
  columns.insert(columns.end(), {discarded, ">TIME", ">COPY", "RESULT"});
  DaemonTable table(heading, columns);
  std::string failures;
  for (const Answer<Response>& answer : answers) {
    const bool failed = answer.status.code() != 0;
    if (!heading.empty() && (failed || answer.response.workers().empty())) {
      std::vector<std::string> row(columns.size(), "-");
      row.back() = failed ? ReasonOf(answer.status) : "nothing to do";
      table.AddRow(answer.daemon, row);
    }
    for (const v1::WorkerResult& result : answer.response.workers()) {
      const bool ok = result.status().code() == 0;
      std::vector<std::string> row = {result.worker_id(), result.worker_name(),
                                      std::to_string(result.segments()),
                                      Size(result.device_bytes()), Size(result.copied_bytes())};
      if (kSleep) row.push_back(Size(result.unchanged_bytes()));
      row.insert(row.end(), {Size(result.discarded_bytes()),
                             FormatDuration(ToDuration(result.timing().total())),
                             Speed(result.copied_bytes(), result.timing().copy()),
                             ok ? "ok" : ReasonOf(result.status())});
      table.AddRow(answer.daemon, row);
      if (ok) continue;
      const std::string whose = heading.empty() ? "" : answer.daemon + " ";
      failures += "\n" + whose + result.worker_id() + ": " + PrintError(result.status());
      if (result.rollback_pending()) failures += "  rollback pending\n";
    }
  }
  return table.ToString() + failures;
}

// "Freed 24.00 MiB of device memory on 2 of 3 devices.": of how many it is the sum.
template <typename Response>
std::string PrintSum(const char* verb, const std::vector<Answer<Response>>& answers) {
  int64_t bytes = 0;
  size_t answered = 0;
  for (const Answer<Response>& answer : answers) {
    if (answer.status.code() != 0) continue;
    ++answered;
    bytes += answer.response.device_bytes();
  }
  const std::string all = std::to_string(answers.size());
  return std::string(verb) + " " + Size(bytes) + " of device memory on " +
         (answered == answers.size() ? all : std::to_string(answered) + " of " + all) +
         (answers.size() == 1 ? " device.\n" : " devices.\n");
}

// "serves", or what is wrong, and why it is not protected.
std::string State(const Answer<v1::UsageResponse>& answer) {
  if (answer.status.code() != 0) return ReasonOf(answer.status);
  const v1::UsageResponse& usage = answer.response;
  std::string state = usage.health().code() != 0                 ? ReasonOf(usage.health())
                      : usage.device().overcommitted_bytes() > 0 ? "overcommitted"
                                                                 : "serves";
  const std::string unprotected = WhyUnprotected(usage);
  return unprotected.empty() ? state : state + ", " + unprotected;
}

std::string PrintDevices(const std::string& heading, const UsageAnswers& answers) {
  const std::vector<std::string> columns = {">TOTAL",    ">FREE",      ">RESIDENT", ">OTHER",
                                            ">PROMISED", ">AVAILABLE", ">POOL",     ">ASLEEP",
                                            ">CLEAN",    ">WORKERS",   "STATE"};
  DaemonTable table(heading, columns);
  std::vector<int64_t> sums(columns.size() - 2);
  int workers = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& sizes, int count,
                       const std::string& state) {
    std::vector<std::string> row;
    row.reserve(columns.size());
    for (const int64_t size : sizes) row.push_back(Size(size));
    row.insert(row.end(), {std::to_string(count), state});
    table.AddRow(name, row);
  };
  size_t answered = 0;
  for (const Answer<v1::UsageResponse>& answer : answers) {
    if (answer.status.code() != 0) {
      std::vector<std::string> row(columns.size(), "-");
      row.back() = State(answer);
      table.AddRow(answer.daemon, row);
      continue;
    }
    ++answered;
    const v1::DeviceUsage& device = answer.response.device();
    const v1::HostPoolUsage& pool = answer.response.host_pool();
    const std::vector<int64_t> sizes = {
        device.total_bytes(),    device.free_bytes(),
        device.resident_bytes(), device.context_bytes() + device.other_bytes(),
        device.promised_bytes(), device.available_bytes(),
        pool.budget_bytes(),     pool.used_bytes(),
        pool.clean_bytes()};
    for (size_t i = 0; i < sizes.size(); ++i) sums[i] += sizes[i];
    workers += answer.response.workers_size();
    add(answer.daemon, sizes, answer.response.workers_size(), State(answer));
  }
  if (answers.size() > 1 && answered > 0) {
    add("sum", sums, workers,
        std::to_string(answered) + " of " + std::to_string(answers.size()) + " answer");
  }
  return table.ToString();
}

std::string PrintLists(const std::string& heading, const UsageAnswers& answers,
                       std::chrono::system_clock::time_point now) {
  return PrintWorkers(heading, answers) + PrintEndpoints(heading, answers) +
         PrintReservations(heading, answers, now) + PrintQueue(heading, answers, now);
}

}  // namespace

std::string ReasonOf(const google::rpc::Status& status) {
  const std::string reason = InfoOf(status).reason();
  return reason.empty() ? std::string(CodeName(static_cast<Code>(status.code()))) : reason;
}

std::string Print(const v1::UsageResponse& usage, std::chrono::system_clock::time_point now) {
  return PrintDevice(usage.device(), usage.host_pool()) + PrintConditions(usage) +
         PrintLists("", {{"", usage, {}}}, now);
}

std::string Print(const v1::SleepResponse& response) {
  return PrintResults<v1::SleepResponse>("", {{"", response, {}}}, ">FREED", ">DROPPED") +
         "Freed " + Size(response.device_bytes()) + " of device memory.\n";
}

std::string Print(const v1::WakeUpResponse& response) {
  return PrintResults<v1::WakeUpResponse>("", {{"", response, {}}}, ">TAKEN", ">CLEARED") +
         "Took " + Size(response.device_bytes()) + " of device memory.\n";
}

std::string PrintSeveral(const std::string& heading, const UsageAnswers& answers,
                         std::chrono::system_clock::time_point now) {
  return PrintDevices(heading, answers) + PrintLists(heading, answers, now);
}

std::string PrintSeveral(const std::string& heading,
                         const std::vector<Answer<v1::SleepResponse>>& answers) {
  return PrintResults(heading, answers, ">FREED", ">DROPPED") + PrintSum("Freed", answers);
}

std::string PrintSeveral(const std::string& heading,
                         const std::vector<Answer<v1::WakeUpResponse>>& answers) {
  return PrintResults(heading, answers, ">TAKEN", ">CLEARED") + PrintSum("Took", answers);
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
