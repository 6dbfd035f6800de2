#include "daemon/metrics/usage_families.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace torpor::metrics {
namespace {

// Of one worker's name and tag.
struct Sums {
  int64_t segments = 0;
  Bytes resident{};
  Bytes offloaded{};
  Bytes discarded{};
  Bytes stranded{};
  Bytes host{};
  Bytes clean{};

  void Add(const TagStats& tag) {
    segments += tag.segments;
    resident += tag.resident;
    offloaded += tag.offloaded;
    discarded += tag.discarded;
    stranded += tag.stranded;
    host += tag.host;
    clean += tag.clean;
  }
};
using ByWorkerAndTag = std::map<std::pair<std::string, std::string>, Sums>;

// The names with the most bytes; of equal ones the first.
std::set<std::string> Largest(const std::map<std::string, Bytes>& sizes, size_t most) {
  std::vector<std::pair<std::string, Bytes>> ordered(sizes.begin(), sizes.end());
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  ordered.resize(std::min(ordered.size(), most));
  std::set<std::string> names;
  for (const auto& [name, size] : ordered) names.insert(name);
  return names;
}

ByWorkerAndTag AddUp(const std::vector<WorkerStats>& workers) {
  std::map<std::string, Bytes> of_worker;
  std::map<std::string, Bytes> of_tag;
  for (const WorkerStats& worker : workers) {
    Bytes& size = of_worker[worker.info.name];
    for (const TagStats& tag : worker.tags) {
      const Bytes bytes = tag.resident + tag.offloaded + tag.discarded;
      size += bytes;
      of_tag[tag.tag] += bytes;
    }
  }
  const std::set<std::string> named = Largest(of_worker, kMostWorkers);
  const std::set<std::string> tags = Largest(of_tag, kMostTags);
  ByWorkerAndTag sums;
  for (const WorkerStats& worker : workers) {
    const std::string name = named.count(worker.info.name) != 0 ? worker.info.name : kOther;
    for (const TagStats& tag : worker.tags) {
      sums[{name, tags.count(tag.tag) != 0 ? tag.tag : kOther}].Add(tag);
    }
  }
  return sums;
}

void AddWorkers(const UsageReport& usage, Families& families) {
  Family segments = Family::Gauge("torpor_segments", "Segments of workers.");
  Family bytes = Family::Gauge("torpor_segment_bytes",
                               "Bytes of workers' segments, by where their contents are.");
  Family stranded = Family::Gauge(
      "torpor_stranded_bytes",
      "Device memory of freed parts of extents that still live: reused in place, or dropped at the "
      "next sleep.");
  Family images = Family::Gauge(
      "torpor_image_bytes",
      "Bytes in the host pool: of what sleeps, and clean copies of what is resident.");
  for (const auto& [key, sums] : AddUp(usage.workers)) {
    const auto& [worker, tag] = key;
    segments.Add({{"worker", worker}, {"tag", tag}}, static_cast<double>(sums.segments));
    bytes.Add({{"worker", worker}, {"tag", tag}, {"state", "resident"}}, sums.resident);
    bytes.Add({{"worker", worker}, {"tag", tag}, {"state", "offloaded"}}, sums.offloaded);
    bytes.Add({{"worker", worker}, {"tag", tag}, {"state", "discarded"}}, sums.discarded);
    stranded.Add({{"worker", worker}, {"tag", tag}}, sums.stranded);
    images.Add({{"worker", worker}, {"tag", tag}, {"state", "asleep"}}, sums.host);
    images.Add({{"worker", worker}, {"tag", tag}, {"state", "clean"}}, sums.clean);
  }
  segments.MoveTo(families);
  bytes.MoveTo(families);
  stranded.MoveTo(families);
  images.MoveTo(families);

  int64_t connected = 0;
  int64_t awaited = 0;
  int64_t busy = 0;
  int64_t unknown = 0;
  for (const WorkerStats& worker : usage.workers) {
    ++(worker.info.awaited ? awaited : connected);
    if (worker.operation.has_value()) ++busy;
    if (worker.unknown_attachment) ++unknown;
  }
  Family::Gauge("torpor_sessions",
                "Sessions of workers; awaited: from before the daemon's restart, and not back yet.")
      .Add({{"state", "connected"}}, static_cast<double>(connected))
      .Add({{"state", "awaited"}}, static_cast<double>(awaited))
      .MoveTo(families);
  Family::Gauge("torpor_workers_under_operation", "Workers under an operation right now.")
      .Add({}, static_cast<double>(busy))
      .MoveTo(families);
  Family::Gauge("torpor_workers_rollback_pending",
                "Workers that have not acknowledged the end of a failed operation.")
      .Add({}, static_cast<double>(unknown))
      .MoveTo(families);
}

void AddDevice(const BudgetStats& budget, Families& families) {
  const auto gauge = [&](const char* name, const char* help, Bytes value) {
    Family::Gauge(name, help).Add({}, value).MoveTo(families);
  };
  gauge("torpor_device_capacity_bytes", "Memory of the device: free + resident + context + other.",
        budget.total);
  gauge("torpor_device_free_bytes", "Free device memory, as the driver sees it.", budget.free);
  gauge("torpor_device_resident_bytes", "Device memory of the daemon's extents.", budget.resident);
  gauge("torpor_device_context_bytes",
        "Device memory of the daemon's own context; 0 where it could not be measured.",
        budget.context);
  gauge("torpor_device_other_bytes",
        "Device memory of everybody else: workers' contexts, other processes.", budget.other);
  gauge("torpor_device_promised_bytes", "Promised by reservations and not drawn yet.",
        budget.promised);
  gauge("torpor_device_pending_bytes",
        "Granted and not yet created, or released and not yet given back.", budget.pending);
  gauge("torpor_device_safety_reserve_bytes", "Device memory that is never promised.",
        budget.safety_reserve);
  gauge("torpor_device_available_bytes",
        "What can still be promised or allocated: free - promised - safety reserve - pending.",
        budget.available);
  gauge("torpor_device_overcommitted_bytes",
        "By how much promises exceed what is there, because others grew.", budget.overcommitted);
}

void AddHostPool(const UsageReport& usage, Families& families) {
  const auto gauge = [&](const char* name, const char* help, Bytes value) {
    Family::Gauge(name, help).Add({}, value).MoveTo(families);
  };
  gauge("torpor_host_pool_capacity_bytes", "Budget of the host pool.", usage.pool.budget);
  gauge("torpor_host_pool_used_bytes", "Images of what sleeps.", usage.pool.used);
  gauge("torpor_host_pool_clean_bytes",
        "Besides the used bytes: images of what is resident, which make room for whoever needs it.",
        usage.pool_clean);
  gauge("torpor_host_pool_pinned_bytes", "Registered for copies so far.", usage.pool.pinned);
  gauge("torpor_host_pool_promised_bytes", "Promised by reservations and not drawn yet.",
        usage.pool_promised);
  gauge("torpor_host_pool_refused_bytes", "What the system did not let be pinned at the last try.",
        usage.pool.refused);
  Family::Gauge("torpor_host_pool_info", "What the host pool is made of.")
      .Add({{"kind", usage.pool.kind}}, 1)
      .MoveTo(families);
}

void AddReservations(const UsageReport& usage, TimePoint now, Families& families) {
  Bytes device;
  Bytes host;
  Bytes drawn_device;
  Bytes drawn_host;
  for (const ReservationStats& reservation : usage.reservations) {
    device += reservation.device;
    host += reservation.host;
    drawn_device += reservation.drawn_device;
    drawn_host += reservation.drawn_host;
  }
  Family::Gauge("torpor_reservations", "Reservations.")
      .Add({}, static_cast<double>(usage.reservations.size()))
      .MoveTo(families);
  Family::Gauge("torpor_reserved_bytes", "What reservations were made for, in all.")
      .Add({{"memory", "device"}}, device)
      .Add({{"memory", "host"}}, host)
      .MoveTo(families);
  Family::Gauge("torpor_reserved_drawn_bytes", "What is drawn from reservations, in all.")
      .Add({{"memory", "device"}}, drawn_device)
      .Add({{"memory", "host"}}, drawn_host)
      .MoveTo(families);

  Bytes wanted_device;
  Bytes wanted_host;
  TimePoint oldest = now;
  for (const WaiterStats& waiter : usage.queue) {
    wanted_device += waiter.device;
    wanted_host += waiter.host;
    oldest = std::min(oldest, waiter.since);
  }
  Family::Gauge("torpor_queue_waiters", "Reservations and allocations that wait for memory.")
      .Add({}, static_cast<double>(usage.queue.size()))
      .MoveTo(families);
  Family::Gauge("torpor_queue_wanted_bytes", "What those that wait want, in all.")
      .Add({{"memory", "device"}}, wanted_device)
      .Add({{"memory", "host"}}, wanted_host)
      .MoveTo(families);
  Family::Gauge("torpor_queue_oldest_wait_seconds",
                "How long the one that waits the longest has waited; 0 if nobody waits.")
      .Add({}, Seconds(now - oldest))
      .MoveTo(families);
}

}  // namespace

void AddUsage(const UsageReport& usage, TimePoint now, Families& families) {
  AddDevice(usage.budget, families);
  AddHostPool(usage, families);
  AddReservations(usage, now, families);
  AddWorkers(usage, families);
  Family::Gauge("torpor_protected",
                "1: what workers have outlives the daemon. 0: it does not, or not now.")
      .Add({}, usage.protection.ok() ? 1 : 0)
      .MoveTo(families);
}

}  // namespace torpor::metrics
