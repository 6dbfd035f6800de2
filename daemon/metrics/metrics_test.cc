#include "daemon/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <string>
#include <thread>

#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "daemon/metrics/request_metrics.h"
#include "daemon/metrics/usage_families.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "lib/cuda/call_kind.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "lib/cuda/timed_driver.h"
#include "tests/harness/temp_dir.h"

namespace torpor::metrics {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The value behind `series`, which is a name with its labels as they are written; "" without one.
std::string ValueOf(const std::string& text, const std::string& series) {
  const std::string line = "\n" + series + " ";
  const size_t at = ("\n" + text).find(line);
  if (at == std::string::npos) return "";
  const size_t value = at + line.size() - 1;
  return text.substr(value, text.find('\n', value) - value);
}

int CountLines(const std::string& text, const std::string& beginning) {
  int count = 0;
  for (size_t at = 0; (at = text.find("\n" + beginning, at)) != std::string::npos; ++at) ++count;
  return count;
}

std::string Text(const Families& families) {
  return prometheus::TextSerializer().Serialize(families);
}

std::string TextOf(const UsageReport& usage, TimePoint now = TimePoint()) {
  Families families;
  AddUsage(usage, now, families);
  return Text(families);
}

WorkerStats Worker(const std::string& name, const std::string& tag, Bytes resident) {
  WorkerStats worker;
  worker.info.name = name;
  TagStats stats;
  stats.tag = tag;
  stats.segments = 1;
  stats.resident = resident;
  worker.tags.push_back(stats);
  return worker;
}

TEST(UsageFamiliesTest, WorkersOfOneNameAreOne) {
  UsageReport usage;
  usage.workers = {Worker("model", "weights", MiB(3)), Worker("model", "weights", MiB(4)),
                   Worker("model", "kv_cache", MiB(1)), Worker("rest", "weights", MiB(1))};
  usage.workers[3].info.awaited = true;
  usage.workers[3].unknown_attachment = true;
  usage.workers[0].operation = OperationId(1);
  const std::string text = TextOf(usage);
  EXPECT_EQ(ValueOf(text, R"(torpor_segment_bytes{worker="model",tag="weights",state="resident"})"),
            std::to_string(MiB(7).value()));
  EXPECT_EQ(ValueOf(text, R"(torpor_segments{worker="model",tag="weights"})"), "2");
  EXPECT_EQ(ValueOf(text, R"(torpor_sessions{state="connected"})"), "3");
  EXPECT_EQ(ValueOf(text, R"(torpor_sessions{state="awaited"})"), "1");
  EXPECT_EQ(ValueOf(text, "torpor_workers_under_operation"), "1");
  EXPECT_EQ(ValueOf(text, "torpor_workers_rollback_pending"), "1");
}

TEST(UsageFamiliesTest, CardinalityIsBounded) {
  UsageReport usage;
  for (int i = 0; i < 1000; ++i) {
    usage.workers.push_back(
        Worker("worker-" + std::to_string(i), "tag-" + std::to_string(i % 50), MiB(1 + i)));
  }
  const std::string text = TextOf(usage);
  EXPECT_LE(CountLines(text, "torpor_segments{"),
            static_cast<int>((kMostWorkers + 1) * (kMostTags + 1)));
  // The largest by name, and nothing is lost.
  EXPECT_THAT(text, AllOf(HasSubstr(R"(worker="worker-999")"), Not(HasSubstr("\"worker-0\"")),
                          HasSubstr(R"({worker="other",tag="other"})")));
  double sum = 0;
  for (size_t at = 0; (at = text.find("\ntorpor_segment_bytes{", at)) != std::string::npos; ++at) {
    sum += std::stod(text.substr(text.find("} ", at) + 2));
  }
  EXPECT_EQ(sum, static_cast<double>(MiB(1000 * 1001 / 2).value()));
}

TEST(UsageFamiliesTest, TheQueueAndReservations) {
  UsageReport usage;
  const TimePoint now = TimePoint() + seconds(100);
  usage.queue.resize(2);
  usage.queue[0].since = now - seconds(7);
  usage.queue[0].device = MiB(2);
  usage.queue[1].since = now - seconds(3);
  usage.queue[1].host = MiB(1);
  usage.reservations.resize(1);
  usage.reservations[0].device = MiB(8);
  usage.reservations[0].drawn_device = MiB(3);
  usage.protection = FailedPrecondition("NO_KEEPER", "none");
  const std::string text = TextOf(usage, now);
  EXPECT_EQ(ValueOf(text, "torpor_queue_waiters"), "2");
  EXPECT_EQ(ValueOf(text, "torpor_queue_oldest_wait_seconds"), "7");
  EXPECT_EQ(ValueOf(text, R"(torpor_queue_wanted_bytes{memory="device"})"), "2097152");
  EXPECT_EQ(ValueOf(text, R"(torpor_reserved_bytes{memory="device"})"), "8388608");
  EXPECT_EQ(ValueOf(text, R"(torpor_reserved_drawn_bytes{memory="device"})"), "3145728");
  EXPECT_EQ(ValueOf(text, "torpor_protected"), "0");
  usage.queue.clear();
  EXPECT_EQ(ValueOf(TextOf(usage, now), "torpor_queue_oldest_wait_seconds"), "0");
}

class RequestMetricsTest : public testing::Test {
 protected:
  std::string Collect() const { return Text(registry_.Collect()); }
  prometheus::Registry registry_;
  RequestMetrics requests_{registry_};
};

TEST_F(RequestMetricsTest, WhatHasNotHappenedIsZero) {
  const std::string text = Collect();
  for (const char* series :
       {R"(torpor_requests_total{plane="control",request="Sleep",result="error"})",
        R"(torpor_operations_total{kind="wake_up",result="ok"})",
        R"(torpor_operation_phase_duration_seconds_count{kind="sleep",phase="copy"})",
        R"(torpor_copied_bytes_total{kind="sleep"})", "torpor_offload_asked_bytes_total",
        R"(torpor_session_changes_total{change="opened"})"}) {
    EXPECT_EQ(ValueOf(text, series), "0") << series << " in " << text;
  }
}

TEST_F(RequestMetricsTest, CountsOperationsAtTheirEnd) {
  OperationEvent event;
  event.kind = OperationKind::kSleep;
  event.device = MiB(10);
  event.copied = MiB(2);
  event.unchanged = MiB(6);
  event.discarded = MiB(2);
  event.times.total = milliseconds(500);
  event.times.copy = milliseconds(200);
  requests_.OnEvent(event);
  event.change = OperationEvent::Change::kCommitted;
  requests_.OnEvent(event);
  EXPECT_EQ(ValueOf(Collect(), R"(torpor_operations_total{kind="sleep",result="ok"})"), "0");
  event.change = OperationEvent::Change::kEnded;
  requests_.OnEvent(event);
  event.status = ResourceExhausted("HOST_POOL_EXHAUSTED", "full");
  requests_.OnEvent(event);
  event.change = OperationEvent::Change::kRolledBack;
  requests_.OnEvent(event);
  const std::string text = Collect();
  EXPECT_EQ(ValueOf(text, R"(torpor_operations_total{kind="sleep",result="ok"})"), "1");
  EXPECT_EQ(ValueOf(text, R"(torpor_operations_total{kind="sleep",result="error"})"), "1");
  EXPECT_EQ(ValueOf(text, R"(torpor_operation_duration_seconds_sum{kind="sleep"})"), "1");
  EXPECT_EQ(
      ValueOf(text, R"(torpor_operation_phase_duration_seconds_sum{kind="sleep",phase="copy"})"),
      "0.2");
  EXPECT_EQ(ValueOf(text, R"(torpor_copied_bytes_total{kind="sleep"})"), "2097152");
  EXPECT_EQ(ValueOf(text, "torpor_offload_asked_bytes_total"), "8388608");
  EXPECT_EQ(ValueOf(text, "torpor_offload_unchanged_bytes_total"), "6291456");
  EXPECT_EQ(ValueOf(text, R"(torpor_rollbacks_total{kind="sleep"})"), "1");
  EXPECT_EQ(
      ValueOf(text, R"(torpor_errors_total{reason="HOST_POOL_EXHAUSTED",source="operation"})"),
      "1");
}

TEST_F(RequestMetricsTest, CountsAnswersAndBoundsReasons) {
  using Plane = AnswerObserver::Plane;
  requests_.OnAnswer(Plane::kControl, "Sleep", Status::Ok(), milliseconds(20));
  requests_.OnAnswer(Plane::kWorker, "Allocate", Internal("FIRST_REASON", ""), Duration::zero());
  for (size_t i = 0; i < 10 * RequestMetrics::kMostReasons; ++i) {
    requests_.OnAnswer(Plane::kControl, "Sleep", Internal("REASON_" + std::to_string(i), ""),
                       milliseconds(1));
  }
  requests_.OnAnswer(Plane::kWorker, "Allocate", Internal("FIRST_REASON", ""), Duration::zero());
  const std::string text = Collect();
  EXPECT_EQ(ValueOf(text, R"(torpor_requests_total{plane="control",request="Sleep",result="ok"})"),
            "1");
  EXPECT_EQ(
      ValueOf(text, R"(torpor_requests_total{plane="worker",request="Allocate",result="error"})"),
      "2");
  EXPECT_EQ(ValueOf(text, R"(torpor_errors_total{reason="FIRST_REASON",source="worker"})"), "2");
  EXPECT_EQ(CountLines(text, "torpor_errors_total{"),
            static_cast<int>(RequestMetrics::kMostReasons) + 1);
  EXPECT_EQ(ValueOf(text, R"(torpor_errors_total{reason="other",source="control"})"),
            std::to_string(9 * RequestMetrics::kMostReasons + 1));
}

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto host = HostDriver::CreateDevice({"host-0", MiB(64), MiB(2)});
    ASSERT_THAT(host, IsOk());
    faults_ = std::make_unique<FaultDriver>(*std::move(host));
    driver_ = std::make_unique<TimedDriver>(*faults_);
  }
  void Serve(Metrics& metrics) {
    Core::Options options;
    options.worker_socket = dir_.path() + "/worker.sock";
    options.host_pool = MiB(32);
    options.observer = &metrics.observer();
    auto core = Core::Create(*driver_, keeper_, Clock::Real(), options);
    ASSERT_THAT(core, IsOk());
    core_ = *std::move(core);
    ASSERT_THAT(metrics.Serve(*core_), IsOk());
  }
  TempDir dir_;
  InProcessKeeper keeper_;
  std::unique_ptr<FaultDriver> faults_;
  std::unique_ptr<TimedDriver> driver_;
  std::unique_ptr<Core> core_;
};

TEST_F(MetricsTest, TellsWhatThereIs) {
  Status health = Unavailable("DAEMON_STARTING", "");
  Metrics metrics(*driver_, "1.2.3", [&] { return health; });
  metrics.SetStarts(4);
  metrics.SetAccessFileWrong(true);
  std::string text = metrics.Scrape();
  EXPECT_EQ(ValueOf(text, R"(torpor_build_info{version="1.2.3"})"), "1");
  EXPECT_EQ(ValueOf(text, "torpor_daemon_starts_total"), "4");
  EXPECT_EQ(ValueOf(text, "torpor_access_file_wrong"), "1");
  EXPECT_EQ(ValueOf(text, "torpor_healthy"), "0");
  EXPECT_EQ(ValueOf(text, R"(torpor_health_problem{reason="DAEMON_STARTING"})"), "1");
  EXPECT_EQ(ValueOf(text, R"(torpor_health_problem{reason="GPU_LOST"})"), "0");
  EXPECT_EQ(ValueOf(text, "torpor_usage_collected"), "0");
  EXPECT_THAT(text, Not(HasSubstr("torpor_device_capacity_bytes")));

  Serve(metrics);
  health = Status::Ok();
  text = metrics.Scrape();
  EXPECT_EQ(ValueOf(text, "torpor_healthy"), "1");
  EXPECT_EQ(ValueOf(text, "torpor_usage_collected"), "1");
  EXPECT_EQ(ValueOf(text, "torpor_device_capacity_bytes"), "67108864");
  EXPECT_NE(ValueOf(text, R"(torpor_driver_call_duration_seconds_count{call="GetMemoryInfo"})"),
            "0");
  EXPECT_EQ(ValueOf(text, R"(torpor_driver_call_errors_total{call="GetMemoryInfo"})"), "0");
  metrics.Stop();
}

TEST_F(MetricsTest, CountsEventsOfTheCore) {
  Metrics metrics(*driver_, "1.2.3", nullptr);
  Serve(metrics);
  ReservationSpec spec;
  spec.name = "next";
  spec.parts = {{"weights", MiB(2)}};
  spec.ttl = seconds(60);
  ASSERT_THAT(core_->Reserve(spec), IsOk());
  const TimePoint until = Clock::Real().Now() + seconds(60);
  while (ValueOf(metrics.Scrape(), R"(torpor_reservation_changes_total{change="made"})") != "1") {
    ASSERT_LT(Clock::Real().Now(), until);
    std::this_thread::yield();
  }
  metrics.Stop();
}

TEST_F(MetricsTest, ADriverThatDoesNotAnswerHoldsUpNoScrape) {
  Metrics metrics(*driver_, "1.2.3", nullptr, milliseconds(10));
  Serve(metrics);
  faults_->StopAt(CallKind::kGetMemoryInfo, 1);
  EXPECT_EQ(ValueOf(metrics.Scrape(), "torpor_usage_collected"), "0");
  EXPECT_EQ(ValueOf(metrics.Scrape(), "torpor_usage_collected"), "0");
  faults_->Continue();
  const TimePoint until = Clock::Real().Now() + seconds(60);
  while (ValueOf(metrics.Scrape(), "torpor_usage_collected") != "1") {
    ASSERT_LT(Clock::Real().Now(), until);
  }
  metrics.Stop();
}

}  // namespace
}  // namespace torpor::metrics
