#ifndef TORPOR_DAEMON_METRICS_FAMILY_H_
#define TORPOR_DAEMON_METRICS_FAMILY_H_

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/units.h"

namespace torpor::metrics {

using Families = std::vector<prometheus::MetricFamily>;
using Labels = std::initializer_list<std::pair<const char*, std::string>>;

inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// One family of values that are read at the time of a scrape.
class Family {
 public:
  static Family Gauge(const char* name, const char* help) {
    return Family(name, help, prometheus::MetricType::Gauge);
  }
  static Family Counter(const char* name, const char* help) {
    return Family(name, help, prometheus::MetricType::Counter);
  }
  static Family Histogram(const char* name, const char* help) {
    return Family(name, help, prometheus::MetricType::Histogram);
  }

  Family& Add(Labels labels, double value) {
    prometheus::ClientMetric& metric = New(labels);
    if (family_.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    return *this;
  }
  Family& Add(Labels labels, Bytes value) {
    return Add(labels, static_cast<double>(value.value()));
  }
  Family& Add(Labels labels, prometheus::ClientMetric::Histogram histogram) {
    New(labels).histogram = std::move(histogram);
    return *this;
  }
  void MoveTo(Families& families) { families.push_back(std::move(family_)); }

 private:
  Family(const char* name, const char* help, prometheus::MetricType type) {
    family_.name = name;
    family_.help = help;
    family_.type = type;
  }
  prometheus::ClientMetric& New(Labels labels) {
    prometheus::ClientMetric& metric = family_.metric.emplace_back();
    for (const auto& [name, value] : labels) metric.label.push_back({name, value});
    return metric;
  }

  prometheus::MetricFamily family_;
};

}  // namespace torpor::metrics

#endif  // TORPOR_DAEMON_METRICS_FAMILY_H_
