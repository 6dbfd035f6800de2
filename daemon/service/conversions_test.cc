#include "daemon/service/conversions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>

#include "google/rpc/error_details.pb.h"
#include "lib/base/status_matchers.h"
#include "lib/wire/messages.h"

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr TimePoint kDeadline = TimePoint() + seconds(7);

TEST(ConversionsTest, SleepRequest) {
  v1::SleepRequest request;
  request.mutable_selector()->add_workers("w-1");
  request.mutable_selector()->add_tags("weights");
  (*request.mutable_policies())["weights"] = v1::POLICY_OFFLOAD;
  (*request.mutable_policies())["kv_cache"] = v1::POLICY_DISCARD;
  (*request.mutable_policies())["workspace"] = v1::POLICY_KEEP;
  request.set_level(-3);  // Core's to judge
  request.set_force(true);
  const Result<SleepCommand> command = ToSleepCommand(request, kDeadline);
  ASSERT_THAT(command, IsOk());
  EXPECT_THAT(command->selector.workers, ElementsAre("w-1"));
  EXPECT_THAT(command->selector.tags, ElementsAre("weights"));
  EXPECT_FALSE(command->selector.all);
  EXPECT_THAT(command->policies, UnorderedElementsAre(Pair("weights", wire::Policy::kOffload),
                                                      Pair("kv_cache", wire::Policy::kDiscard),
                                                      Pair("workspace", wire::Policy::kKeep)));
  EXPECT_EQ(command->level, -3);
  EXPECT_TRUE(command->force);
  EXPECT_EQ(command->deadline, kDeadline);
}

TEST(ConversionsTest, RefusesPoliciesThatAreNone) {
  for (const int policy : {0, 4, -1, 1 << 30}) {
    v1::SleepRequest request;
    (*request.mutable_policies())["weights"] = static_cast<v1::Policy>(policy);
    const Result<SleepCommand> command = ToSleepCommand(request, kDeadline);
    ASSERT_THAT(command, HasReason("BAD_POLICY"));
    EXPECT_EQ(command.status().Number("policy"), policy);
  }
}

TEST(ConversionsTest, WakeUpRequest) {
  v1::WakeUpRequest request;
  request.mutable_selector()->set_all(true);
  request.add_order("weights");
  request.add_order("kv_cache");
  request.set_reservation_id("r-9");
  const WakeCommand command = ToWakeCommand(request, kDeadline);
  EXPECT_TRUE(command.selector.all);
  EXPECT_THAT(command.order, ElementsAre("weights", "kv_cache"));
  EXPECT_EQ(command.reservation, "r-9");
  EXPECT_EQ(command.deadline, kDeadline);
}

v1::ReserveRequest MakeReserveRequest() {
  v1::ReserveRequest request;
  request.set_name("model");
  v1::ReservationPart& part = *request.add_parts();
  part.set_name("weights");
  part.set_device_bytes(4096);
  request.set_host_bytes(8192);
  request.mutable_ttl()->set_seconds(30);
  request.mutable_ttl()->set_nanos(500'000'000);
  return request;
}

TEST(ConversionsTest, ReserveRequest) {
  const Result<ReservationSpec> command = ToReservationSpec(MakeReserveRequest());
  ASSERT_THAT(command, IsOk());
  EXPECT_EQ(command->name, "model");
  ASSERT_EQ(command->parts.size(), 1U);
  EXPECT_EQ(command->parts[0].name, "weights");
  EXPECT_EQ(command->parts[0].device, Bytes(4096));
  EXPECT_EQ(command->host, Bytes(8192));
  EXPECT_EQ(command->ttl, milliseconds(30'500));
}

TEST(ConversionsTest, RefusesAbsurdSizes) {
  for (const int64_t size : {int64_t{-1}, int64_t{1} << 50, std::numeric_limits<int64_t>::max(),
                             std::numeric_limits<int64_t>::min()}) {
    v1::ReserveRequest request = MakeReserveRequest();
    request.mutable_parts(0)->set_device_bytes(size);
    EXPECT_THAT(ToReservationSpec(request), HasReason("BAD_SIZE")) << size;
    request = MakeReserveRequest();
    request.set_host_bytes(size);
    const Result<ReservationSpec> command = ToReservationSpec(request);
    ASSERT_THAT(command, HasReason("BAD_SIZE")) << size;
    EXPECT_EQ(command.status().Number("requested_bytes"), size);
    EXPECT_EQ(command.status().details().at("field"), "host_bytes");
  }
}

TEST(ConversionsTest, RefusesWhatIsNoDuration) {
  v1::ReserveRequest request = MakeReserveRequest();
  request.clear_ttl();
  EXPECT_THAT(ToReservationSpec(request), HasReason("BAD_TTL"));
  const std::pair<int64_t, int32_t> cases[] = {{1, -1},
                                               {-1, 1},
                                               {0, 1'000'000'000},
                                               {315'576'000'001, 0},
                                               {std::numeric_limits<int64_t>::min(), 0},
                                               {0, std::numeric_limits<int32_t>::min()}};
  for (const auto& [whole, nanos] : cases) {
    request.mutable_ttl()->set_seconds(whole);
    request.mutable_ttl()->set_nanos(nanos);
    EXPECT_THAT(ToReservationSpec(request), HasReason("BAD_TTL")) << whole << " " << nanos;
  }
}

TEST(ConversionsTest, LongDurationsStayLong) {
  v1::ReserveRequest request = MakeReserveRequest();
  request.mutable_ttl()->set_seconds(315'576'000'000);
  request.mutable_ttl()->set_nanos(999'999'999);
  ASSERT_THAT(ToReservationSpec(request), IsOk());
  EXPECT_GT(ToReservationSpec(request)->ttl, std::chrono::hours(24 * 365 * 200));
  request.mutable_ttl()->set_seconds(-315'576'000'000);
  request.mutable_ttl()->set_nanos(-1);
  EXPECT_LT(ToReservationSpec(request)->ttl, Duration::zero());
}

TEST(ConversionsTest, Outcomes) {
  WorkerOutcome good;
  good.worker = WorkerId(1);
  good.name = "a";
  good.segments = 3;
  good.device = Bytes(100);
  good.copied = Bytes(60);
  good.discarded = Bytes(40);
  good.times.total = milliseconds(1250);
  good.times.copy = milliseconds(1000);
  WorkerOutcome bad;
  bad.worker = WorkerId(2);
  bad.status = DeadlineExceeded("WORKER_SILENT", "no answer").With("waited_ms", 5000);
  bad.rollback_pending = true;
  v1::SleepResponse response;
  FromOutcomes({good, bad}, response);
  EXPECT_EQ(response.device_bytes(), 100);
  EXPECT_EQ(response.copied_bytes(), 60);
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(0).worker_id(), "w-1");
  EXPECT_EQ(response.workers(0).worker_name(), "a");
  EXPECT_EQ(response.workers(0).status().code(), 0);
  EXPECT_EQ(response.workers(0).discarded_bytes(), 40);
  EXPECT_EQ(response.workers(0).segments(), 3);
  EXPECT_EQ(response.workers(0).timing().total().seconds(), 1);
  EXPECT_EQ(response.workers(0).timing().total().nanos(), 250'000'000);
  EXPECT_EQ(response.workers(0).timing().copy().seconds(), 1);
  EXPECT_FALSE(response.workers(0).rollback_pending());
  EXPECT_EQ(response.workers(1).status().code(), 4);
  EXPECT_TRUE(response.workers(1).rollback_pending());
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(response.workers(1).status().details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "WORKER_SILENT");
  EXPECT_EQ(info.metadata().at("waited_ms"), "5000");
}

TEST(ConversionsTest, ExpiryBecomesWallTime) {
  const Now now = {TimePoint() + seconds(100),
                   std::chrono::system_clock::time_point() + seconds(1'700'000'000)};
  UsageReport report;
  ReservationStats stats;
  stats.id = "r-1";
  stats.name = "model";
  stats.parts = {{"weights", Bytes(10)}};
  stats.device = Bytes(10);
  stats.drawn_device = Bytes(4);
  stats.surrendered_device = Bytes(3);
  stats.expires = now.steady + milliseconds(2500);
  report.reservations = {stats, stats};
  report.reservations[1].expires = now.steady - milliseconds(500);
  v1::UsageResponse response;
  FromReport(report, now, response);
  ASSERT_EQ(response.reservations_size(), 2);
  const v1::ReservationUsage& usage = response.reservations(0);
  EXPECT_EQ(usage.id(), "r-1");
  EXPECT_EQ(usage.parts(0).device_bytes(), 10);
  EXPECT_EQ(usage.drawn_device_bytes(), 4);
  EXPECT_EQ(usage.surrendered_device_bytes(), 3);
  EXPECT_EQ(usage.expire_time().seconds(), 1'700'000'002);
  EXPECT_EQ(usage.expire_time().nanos(), 500'000'000);
  EXPECT_EQ(response.reservations(1).expire_time().seconds(), 1'699'999'999);
  EXPECT_EQ(response.reservations(1).expire_time().nanos(), 500'000'000);
}

TEST(ConversionsTest, Report) {
  UsageReport report;
  report.device.uuid = "host-0";
  report.device.kind = "host";
  report.device.granularity = MiB(2);
  report.budget.total = GiB(1);
  report.budget.free = MiB(900);
  report.budget.resident = MiB(100);
  report.budget.overcommitted = MiB(3);
  report.pool.budget = GiB(2);
  report.pool.used = MiB(5);
  report.pool.kind = "tmpfs, huge pages";
  report.pool.pinning = true;
  report.pool.refused = MiB(9);
  report.pool.last_error = ResourceExhausted("HOST_MEMORY_NOT_PINNED", "refused");
  report.pool_promised = MiB(7);
  WorkerStats worker;
  worker.info.id = WorkerId(4);
  worker.info.name = "w";
  worker.info.peer = {1, 2, 3};
  worker.info.quiesce = wire::Quiesce::kGuard;
  worker.info.sleep_endpoint = "POST http://localhost:8000/sleep";
  worker.operation = OperationId(12);
  worker.unknown_attachment = true;
  TagStats tag;
  tag.tag = "weights";
  tag.segments = 2;
  tag.offloaded = MiB(4);
  tag.host = MiB(4);
  tag.moving = 1;
  worker.tags = {tag};
  report.workers = {worker};
  v1::UsageResponse response;
  FromReport(report, {}, response);
  EXPECT_EQ(response.device().uuid(), "host-0");
  EXPECT_EQ(response.device().total_bytes(), 1 << 30);
  EXPECT_EQ(response.device().overcommitted_bytes(), 3 << 20);
  EXPECT_EQ(response.host_pool().used_bytes(), 5 << 20);
  EXPECT_EQ(response.host_pool().promised_bytes(), 7 << 20);
  EXPECT_EQ(response.host_pool().kind(), "tmpfs, huge pages");
  EXPECT_TRUE(response.host_pool().pinning());
  EXPECT_EQ(response.host_pool().refused_bytes(), 9 << 20);
  EXPECT_EQ(response.host_pool().pinning_error().code(), 8);
  ASSERT_EQ(response.workers_size(), 1);
  const v1::WorkerUsage& usage = response.workers(0);
  EXPECT_EQ(usage.id(), "w-4");
  EXPECT_EQ(usage.uid(), 1U);
  EXPECT_EQ(usage.gid(), 2U);
  EXPECT_EQ(usage.pid(), 3);
  EXPECT_EQ(usage.quiescence(), v1::QUIESCENCE_GUARD);
  EXPECT_EQ(usage.sleep_endpoint(), "POST http://localhost:8000/sleep");
  EXPECT_EQ(usage.operation_id(), "op-12");
  EXPECT_TRUE(usage.rollback_pending());
  EXPECT_EQ(usage.reported_live_bytes(), -1);
  EXPECT_EQ(usage.tags(0).tag(), "weights");
  EXPECT_EQ(usage.tags(0).offloaded_bytes(), 4 << 20);
  EXPECT_EQ(usage.tags(0).host_bytes(), 4 << 20);
  EXPECT_EQ(usage.tags(0).moving_segments(), 1);
}

}  // namespace
}  // namespace torpor
