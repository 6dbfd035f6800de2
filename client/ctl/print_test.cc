#include "client/ctl/print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "lib/base/units.h"

namespace torpor::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

const auto kNow = std::chrono::system_clock::from_time_t(1'700'000'000);

google::rpc::Status Because(const std::string& reason, const std::string& message) {
  google::rpc::Status status;
  status.set_code(14);
  status.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("torpor");
  status.add_details()->PackFrom(info);
  return status;
}

google::rpc::Status PoolExhausted() {
  google::rpc::Status status;
  status.set_code(8);
  status.set_message("no room");
  google::rpc::ErrorInfo info;
  info.set_reason("HOST_POOL_EXHAUSTED");
  info.set_domain("torpor");
  (*info.mutable_metadata())["requested_bytes"] = "2097152";
  (*info.mutable_metadata())["worker"] = "w-1";
  status.add_details()->PackFrom(info);
  return status;
}

TEST(PrintTest, ErrorsShowReasonAndNumbers) {
  EXPECT_EQ(PrintError(PoolExhausted()),
            "RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED: no room\n"
            "  requested_bytes  2097152 (2.00 MiB)\n"
            "  worker           w-1\n");
}

TEST(PrintTest, ErrorsWithoutDetails) {
  google::rpc::Status status;
  status.set_code(14);
  status.set_message("connection refused");
  EXPECT_EQ(PrintError(status), "UNAVAILABLE: connection refused\n");
}

TEST(PrintTest, Usage) {
  v1::UsageResponse usage;
  usage.mutable_device()->set_uuid("host-0");
  usage.mutable_device()->set_name("host memory");
  usage.mutable_device()->set_driver("host");
  usage.mutable_device()->set_total_bytes(GiB(1).value());
  usage.mutable_device()->set_free_bytes(MiB(512).value());
  v1::HostPoolUsage& pool = *usage.mutable_host_pool();
  pool.set_budget_bytes(GiB(2).value());
  pool.set_clean_bytes(MiB(128).value());
  pool.set_kind("anonymous");
  pool.set_pinned_bytes(MiB(256).value());
  pool.set_pinning(true);
  pool.set_refused_bytes(MiB(512).value());
  pool.mutable_pinning_error()->set_message("the system refuses");
  v1::WorkerUsage& worker = *usage.add_workers();
  worker.set_id("w-1");
  worker.set_name("model");
  worker.set_pid(42);
  worker.set_quiescence(v1::QUIESCENCE_OWN_CALL);
  worker.set_operation_id("op-3");
  worker.set_sleep_endpoint("POST http://localhost:8000/sleep");
  for (const char* name : {"weights", "kv_cache"}) {
    v1::TagUsage& tag = *worker.add_tags();
    tag.set_tag(name);
    tag.set_segments(2);
    tag.set_resident_bytes(MiB(8).value());
    tag.set_clean_bytes(MiB(4).value());
  }
  usage.add_workers()->set_id("w-2");
  v1::ReservationUsage& reservation = *usage.add_reservations();
  reservation.set_id("r-1");
  reservation.set_name("next");
  reservation.set_device_bytes(MiB(64).value());
  reservation.mutable_expire_time()->set_seconds(1'700'000'090);
  reservation.add_parts()->set_name("weights");
  reservation.set_hold(true);
  reservation.set_keep(true);
  reservation.set_holders(1);
  v1::WaiterUsage& waiter = *usage.add_queue();
  waiter.set_id("q-7");
  waiter.set_position(1);
  waiter.set_name("later");
  waiter.set_device_bytes(MiB(16).value());
  waiter.mutable_since_time()->set_seconds(1'699'999'998);
  waiter.mutable_deadline_time()->set_seconds(1'700'000'060);
  EXPECT_EQ(
      Print(usage, kNow),
      "Device host-0 (host memory, host): 1.00 GiB\n"
      "      FREE  RESIDENT  CONTEXT  OTHER  PROMISED  RESERVE  AVAILABLE\n"
      "512.00 MiB       0 B      0 B    0 B       0 B      0 B        0 B\n"
      "\n"
      "Host pool (anonymous): 0 B used of 2.00 GiB, 128.00 MiB clean, 256.00 MiB pinned so far, "
      "0 B promised\n"
      "NOT PINNED: 512.00 MiB: the system refuses\n"
      "\n"
      "WORKER  NAME   PID  QUIESCED BY  TAG       SEGMENTS  RESIDENT  OFFLOADED  DISCARDED  HOST"
      "     CLEAN  NOW\n"
      "w-1     model   42  own-call     weights          2  8.00 MiB        0 B        0 B   0 B"
      "  4.00 MiB  op-3\n"
      "                                 kv_cache         2  8.00 MiB        0 B        0 B   0 B"
      "  4.00 MiB  op-3\n"
      "w-2              0  unspecified  -                0\n"
      "\n"
      "WORKER  NAME   SLEEPS BY ITSELF ON\n"
      "w-1     model  POST http://localhost:8000/sleep\n"
      "\n"
      "RESERVATION  NAME     DEVICE  DRAWN  HOST  HOST DRAWN  EXPIRES   PARTS        WORKERS"
      "  KIND\n"
      "r-1          next  64.00 MiB    0 B   0 B         0 B  in 90.0s  weights 0 B        1"
      "  hold, keep\n"
      "\n"
      "QUEUE  ID   NAME   WORKER     DEVICE  HOST  WAITED  GIVES UP\n"
      "1      q-7  later  -       16.00 MiB   0 B   2.00s  in 60.0s\n");
}

TEST(PrintTest, OvercommitmentIsLoud) {
  v1::UsageResponse usage;
  EXPECT_THAT(Print(usage, kNow), Not(HasSubstr("OVERCOMMITTED")));
  usage.mutable_device()->set_overcommitted_bytes(MiB(3).value());
  EXPECT_THAT(Print(usage, kNow), HasSubstr("OVERCOMMITTED by 3.00 MiB"));
}

TEST(PrintTest, WhatADaemonLacks) {
  v1::UsageResponse usage;
  const auto state = [&] { return PrintSeveral("DEVICE", {{"host-0", usage, {}}}, kNow); };
  // One without a keeper is as it was started.
  *usage.mutable_protection() = Because("NO_KEEPER", "it has none");
  EXPECT_THAT(Print(usage, kNow), Not(HasSubstr("NOT ")));
  EXPECT_THAT(state(), HasSubstr("  serves\n"));
  *usage.mutable_protection() = Because("KEEPER_GONE", "it has ended");
  EXPECT_THAT(Print(usage, kNow),
              HasSubstr(" promised\nNOT PROTECTED: KEEPER_GONE: it has ended\n"));
  EXPECT_THAT(state(), HasSubstr("  serves, KEEPER_GONE\n"));
  *usage.mutable_health() = Because("OPERATION_STUCK", "op-1 is late");
  EXPECT_THAT(Print(usage, kNow), HasSubstr(" promised\n"
                                            "NOT SERVING: OPERATION_STUCK: op-1 is late\n"
                                            "NOT PROTECTED: KEEPER_GONE: it has ended\n"));
  EXPECT_THAT(state(), HasSubstr("  OPERATION_STUCK, KEEPER_GONE\n"));
  usage.clear_protection();
  EXPECT_THAT(state(), HasSubstr("  OPERATION_STUCK\n"));
}

TEST(PrintTest, OneOfSeveralIsOneDevice) {
  std::vector<Answer<v1::WakeUpResponse>> answers(1);
  EXPECT_THAT(PrintSeveral("DEVICE", answers),
              HasSubstr("Took 0 B of device memory on 1 device.\n"));
  answers.resize(2);
  EXPECT_THAT(PrintSeveral("DEVICE", answers), HasSubstr(" on 2 devices.\n"));
}

TEST(PrintTest, ResultsOfASleep) {
  v1::SleepResponse response;
  v1::WorkerResult& good = *response.add_workers();
  good.set_worker_id("w-1");
  good.set_worker_name("model");
  good.set_segments(3);
  good.set_device_bytes(GiB(2).value());
  good.set_copied_bytes(GiB(1).value());
  good.set_unchanged_bytes(MiB(512).value());
  good.mutable_timing()->mutable_total()->set_nanos(250'000'000);
  good.mutable_timing()->mutable_copy()->set_nanos(100'000'000);
  v1::WorkerResult& bad = *response.add_workers();
  bad.set_worker_id("w-2");
  bad.set_rollback_pending(true);
  *bad.mutable_status() = PoolExhausted();
  response.set_device_bytes(GiB(2).value());
  EXPECT_EQ(Print(response),
            "WORKER  NAME   SEGMENTS     FREED    COPIED   UNCHANGED  DROPPED   TIME       COPY  "
            "RESULT\n"
            "w-1     model         3  2.00 GiB  1.00 GiB  512.00 MiB      0 B  250ms  10.7 GB/s  "
            "ok\n"
            "w-2                   0       0 B       0 B         0 B      0 B    0us          -  "
            "HOST_POOL_EXHAUSTED\n"
            "\n"
            "w-2: RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED: no room\n"
            "  requested_bytes  2097152 (2.00 MiB)\n"
            "  worker           w-1\n"
            "  rollback pending\n"
            "Freed 2.00 GiB of device memory.\n");
}

TEST(PrintTest, ResultsOfAWake) {
  v1::WakeUpResponse response;
  response.add_workers()->set_worker_id("w-1");
  EXPECT_EQ(Print(response),
            "WORKER  NAME  SEGMENTS  TAKEN  COPIED  CLEARED  TIME  COPY  RESULT\n"
            "w-1                  0    0 B     0 B      0 B   0us     -  ok\n"
            "Took 0 B of device memory.\n");
}

TEST(PrintTest, ReserveAndRelease) {
  v1::ReserveResponse reserved;
  reserved.set_reservation_id("r-1");
  reserved.mutable_budget()->set_requested_bytes(MiB(4).value());
  reserved.mutable_budget()->set_available_bytes(MiB(40).value());
  reserved.mutable_expire_time()->set_seconds(1'700'000'030);
  EXPECT_EQ(Print(reserved, kNow), "r-1: 4.00 MiB of the 40.00 MiB available, expires in 30.0s\n");
  v1::RenewResponse renewed;
  renewed.mutable_expire_time()->set_seconds(1'700'000'060);
  EXPECT_EQ(Print(renewed, kNow), "Expires in 60.0s.\n");
  v1::ReleaseResponse released;
  released.set_device_bytes(MiB(4).value());
  EXPECT_EQ(Print(released), "Came free: 4.00 MiB device, 0 B host.\n");
}

TEST(PrintTest, JsonHasTheNamesOfTheProto) {
  v1::ReleaseResponse released;
  released.set_device_bytes(4096);
  EXPECT_EQ(PrintJson(released),
            "{\n \"device_bytes\": \"4096\",\n \"host_bytes\": \"0\",\n \"replayed\": false\n}\n");
  EXPECT_EQ(PrintJsonLine(released),
            "{\"device_bytes\":\"4096\",\"host_bytes\":\"0\",\"replayed\":false}");
  EXPECT_THAT(PrintJson(PoolExhausted()), HasSubstr("\"reason\": \"HOST_POOL_EXHAUSTED\""));
}

}  // namespace
}  // namespace torpor::ctl
