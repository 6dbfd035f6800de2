#include "daemon/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/metrics/usage_families.h"
#include "daemon/operation/tasks.h"
#include "lib/cuda/call_kind.h"

namespace torpor::metrics {
namespace {

constexpr size_t kBatch = 256;
constexpr const char* kProblems[] = {"DAEMON_STARTING", "DAEMON_STOPPING", "DRIVER_SILENT",
                                     "GPU_LOST", "OPERATION_STUCK"};

prometheus::ClientMetric::Histogram ToHistogram(const TimedDriver::Stats& stats) {
  prometheus::ClientMetric::Histogram histogram;
  for (size_t i = 0; i < stats.calls.size(); ++i) {
    histogram.sample_count += stats.calls[i];
    const double bound = i < TimedDriver::kBounds.size() ? Seconds(TimedDriver::kBounds[i])
                                                         : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({histogram.sample_count, bound});
  }
  histogram.sample_sum = Seconds(stats.total);
  return histogram;
}

}  // namespace

Metrics::Metrics(const TimedDriver& driver, std::string version, std::function<Status()> health,
                 Duration patience)
    : driver_(driver),
      version_(std::move(version)),
      health_(std::move(health)),
      patience_(patience),
      started_(std::chrono::system_clock::now()),
      requests_(registry_) {}

Metrics::~Metrics() { Stop(); }

Status Metrics::Serve(Core& core) {
  TORPOR_RETURN_IF_ERROR(usage_.Start([&core] { return core.Usage(); }));
  events_ = &core.events();
  TORPOR_ASSIGN_OR_RETURN(follower_, StartThread([this] { FollowEvents(*events_); }));
  return Status::Ok();
}

void Metrics::Stop() {
  stopping_ = true;
  if (follower_.joinable()) {
    events_->Wake();
    follower_.join();
  }
  usage_.Stop();
}

void Metrics::FollowEvents(EventLog& log) {
  uint64_t position = 0;
  while (!stopping_) {
    const EventLog::Batch batch = log.Read(position, kBatch);
    if (batch.lost != 0) requests_.OnLost(batch.lost);
    position += batch.lost + batch.events.size();
    for (const auto& event : batch.events) requests_.OnEvent(event->body);
    if (batch.events.empty()) log.WaitBehind(position, stopping_);
  }
}

std::string Metrics::Scrape() {
  Families families;
  AddDaemon(families);
  const std::optional<UsageReport> usage = usage_.Read(patience_);
  Family::Gauge("torpor_usage_collected",
                "1: what the daemon's books say is in this scrape. 0: it is left out, since the "
                "driver fails, or does not answer in time.")
      .Add({}, usage.has_value() ? 1 : 0)
      .MoveTo(families);
  if (usage.has_value()) AddUsage(*usage, Clock::Real().Now(), families);
  AddDriver(families);
  Families counted = registry_.Collect();
  for (prometheus::MetricFamily& family : counted) {
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

void Metrics::AddDaemon(Families& families) const {
  const DeviceInfo& device = driver_.device();
  Family::Gauge("torpor_build_info", "The version that runs.")
      .Add({{"version", version_}}, 1)
      .MoveTo(families);
  Family::Gauge("torpor_device_info", "The device that is served.")
      .Add({{"uuid", device.uuid}, {"name", device.name}, {"driver", device.kind}}, 1)
      .MoveTo(families);
  Family::Gauge("process_start_time_seconds", "When the daemon was started, in Unix time.")
      .Add({}, std::chrono::duration<double>(started_.time_since_epoch()).count())
      .MoveTo(families);
  Family::Counter("torpor_daemon_starts_total",
                  "Starts of the daemon by its keeper; 0 without one, or where it was taken over.")
      .Add({}, starts_)
      .MoveTo(families);
  Family::Gauge("torpor_access_file_wrong",
                "1: the daemon goes by what a daemon before it has read of the access file.")
      .Add({}, access_file_wrong_ ? 1 : 0)
      .MoveTo(families);
  const Status health = health_ != nullptr ? health_() : Status::Ok();
  Family::Gauge("torpor_healthy", "1: the daemon serves as it should, as its health service says.")
      .Add({}, health.ok() ? 1 : 0)
      .MoveTo(families);
  Family problems =
      Family::Gauge("torpor_health_problem", "1: why the daemon does not serve as it should.");
  for (const char* problem : kProblems) {
    problems.Add({{"reason", problem}}, health.reason() == problem ? 1 : 0);
  }
  problems.MoveTo(families);
}

void Metrics::AddDriver(Families& families) const {
  Family seconds = Family::Histogram("torpor_driver_call_duration_seconds",
                                     "Calls of the daemon to the driver.");
  Family errors = Family::Counter("torpor_driver_call_errors_total",
                                  "Calls of the daemon to the driver that failed.");
  for (int i = 0; i < kCallKinds; ++i) {
    const auto kind = static_cast<CallKind>(i);
    const TimedDriver::Stats stats = driver_.stats(kind);
    seconds.Add({{"call", CallName(kind)}}, ToHistogram(stats));
    errors.Add({{"call", CallName(kind)}}, static_cast<double>(stats.errors));
  }
  seconds.MoveTo(families);
  errors.MoveTo(families);
}

}  // namespace torpor::metrics
