#include "client/ctl/print_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(PrintEventTest, NothingForAMereCursor) {
  v1::WatchResponse response;
  response.set_cursor("0123456789abcdef:7");
  EXPECT_EQ(PrintEvent(response), "");
}

TEST(PrintEventTest, TellsTheTime) {
  v1::WatchResponse response;
  response.mutable_time()->set_nanos(7'000'000);
  response.mutable_lost()->set_events(12);
  EXPECT_THAT(PrintEvent(response),
              ContainsRegex("^[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.007 12 events lost$"));
  response.mutable_lost()->set_daemon_restarted(true);
  EXPECT_THAT(PrintEvent(response), EndsWith(" events lost: the daemon has restarted"));
}

TEST(PrintEventTest, Operations) {
  v1::WatchResponse response;
  v1::OperationEvent& event = *response.mutable_operation();
  event.set_change(v1::OPERATION_CHANGE_ROLLED_BACK);
  event.set_kind(v1::OPERATION_KIND_WAKE_UP);
  event.set_operation_id("op-3");
  event.set_worker_id("w-1");
  event.set_worker_name("model");
  EXPECT_THAT(PrintEvent(response), EndsWith(" w-1 (model) op-3 wake rolled back"));
  event.set_change(v1::OPERATION_CHANGE_STARTED);
  event.set_segments(2);
  event.set_device_bytes(kGiB);
  EXPECT_THAT(
      PrintEvent(response),
      EndsWith(" op-3 wake started: 2 segments, 1.00 GiB to take, 0 B to copy, 0 B to clear"));
  event.set_change(v1::OPERATION_CHANGE_ENDED);
  EXPECT_THAT(PrintEvent(response),
              EndsWith(" op-3 wake ended: 2 segments, 1.00 GiB taken, 0 B copied, 0 B cleared"));
  event.set_kind(v1::OPERATION_KIND_SLEEP);
  event.set_change(v1::OPERATION_CHANGE_COMMITTED);
  EXPECT_THAT(
      PrintEvent(response),
      EndsWith(" op-3 sleep committed: 2 segments, 1.00 GiB freed, 0 B copied, 0 B dropped"));
  event.set_kind(v1::OPERATION_KIND_WAKE_UP);
  event.set_change(v1::OPERATION_CHANGE_ENDED);
  event.mutable_status()->set_code(4);
  event.mutable_status()->set_message("too late");
  event.set_rollback_pending(true);
  EXPECT_THAT(PrintEvent(response),
              EndsWith(" wake ended: DEADLINE_EXCEEDED: too late, rollback pending"));
}

TEST(PrintEventTest, Segments) {
  v1::WatchResponse response;
  v1::SegmentsEvent& event = *response.mutable_segments();
  event.set_operation_id("op-3");
  event.set_worker_id("w-1");
  event.set_tag("weights");
  event.set_from_state(v1::SEGMENT_STATE_RESIDENT);
  event.set_to_state(v1::SEGMENT_STATE_OFFLOADED);
  event.set_segments(250);
  event.set_segment_bytes(kGiB);
  EXPECT_THAT(PrintEvent(response),
              EndsWith(" w-1 op-3 weights: 250 segments, 1.00 GiB, resident -> offloaded"));
}

TEST(PrintEventTest, ReservationsQueueAndPressure) {
  v1::WatchResponse response;
  response.mutable_reservation()->set_change(v1::RESERVATION_CHANGE_DRAWN_OUT);
  response.mutable_reservation()->set_reservation_id("r-1");
  response.mutable_reservation()->set_name("job");
  EXPECT_THAT(PrintEvent(response), EndsWith(" r-1 (job) reservation drawn out"));
  response.mutable_queue()->set_change(v1::QUEUE_CHANGE_ENTERED);
  response.mutable_queue()->set_waiter_id("q-1");
  response.mutable_queue()->set_device_bytes(kGiB);
  response.mutable_queue()->set_waiting(3);
  EXPECT_THAT(PrintEvent(response),
              EndsWith(" q-1 queue entered: 1.00 GiB device, 0 B host, 3 waiting"));
  response.mutable_pressure()->set_low(true);
  response.mutable_pressure()->set_overcommitted(true);
  response.mutable_pressure()->set_overcommitted_bytes(kGiB);
  EXPECT_THAT(PrintEvent(response),
              EndsWith(" pressure: memory low, 0 B available, overcommitted by 1.00 GiB"));
}

}  // namespace
}  // namespace torpor::ctl
