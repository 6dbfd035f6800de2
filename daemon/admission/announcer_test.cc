// What admission tells the event log.

#include "daemon/admission/announcer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "daemon/admission/admission.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Made = ReservationEvent::Change;
using Queued = QueueEvent::Change;

class AnnouncerTest : public ::testing::Test {
 protected:
  ~AnnouncerTest() override { admission_.StopWaiting(Unavailable("DAEMON_STOPPING", "stopping")); }

  // Those of one kind since the last call.
  template <typename Body>
  std::vector<Body> Take() {
    std::vector<Body> bodies;
    uint64_t &position = taken_[EventBody(Body()).index()];
    for (const auto &event : log_.Read(position, 1 << 20).events) {
      position = event->sequence;
      if (const Body *const body = std::get_if<Body>(&event->body)) bodies.push_back(*body);
    }
    return bodies;
  }
  std::vector<Made> Changes() {
    std::vector<Made> changes;
    for (const ReservationEvent &event : Take<ReservationEvent>()) changes.push_back(event.change);
    return changes;
  }
  std::string Reserve(Bytes device, Duration ttl = seconds(600), bool keep = true) {
    const auto made = admission_.Reserve({"job", {{"all", device}}, MiB(1), ttl, false, keep});
    EXPECT_THAT(made, IsOk());
    return made.ok() ? made->id : "";
  }

  EventLog log_{1024};
  uint64_t taken_[std::variant_size_v<EventBody>] = {};
  std::unique_ptr<HostDriver> driver_ = *HostDriver::CreateDevice({"announcer", MiB(64), MiB(1)});
  DeviceMemory memory_{*driver_};
  ManualClock clock_;
  Admission admission_{{MiB(4), MiB(16), false, seconds(2), &log_},
                       [this](auto accuracy) { return memory_.Measure(accuracy); },
                       clock_};
};

TEST_F(AnnouncerTest, TheLifeOfAReservation) {
  const std::string id = Reserve(MiB(10));
  auto events = Take<ReservationEvent>();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].change, Made::kMade);
  EXPECT_EQ(events[0].id, id);
  EXPECT_EQ(events[0].name, "job");
  EXPECT_EQ(events[0].device, MiB(10));
  EXPECT_EQ(events[0].host, MiB(1));
  ASSERT_THAT(admission_.Renew(id, seconds(60)), IsOk());
  EXPECT_THAT(Changes(), ElementsAre(Made::kRenewed));
  const auto first = admission_.DrawDevice(MiB(4), id);
  EXPECT_THAT(Changes(), IsEmpty());
  {
    const auto rest = admission_.DrawDevice(MiB(6), id);
    EXPECT_THAT(Changes(), ElementsAre(Made::kDrawnOut));
  }
  ASSERT_THAT(admission_.Release(id), IsOk());
  events = Take<ReservationEvent>();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].change, Made::kReleased);
  EXPECT_EQ(events[0].device, MiB(6));
}

TEST_F(AnnouncerTest, AnExpiryIsToldOnceAtTheNextMeasurement) {
  Reserve(MiB(10), seconds(5));
  Reserve(MiB(5), seconds(50));
  Take<ReservationEvent>();
  clock_.Advance(seconds(6));
  ASSERT_THAT(admission_.Budget(), IsOk());
  ASSERT_THAT(admission_.Budget(), IsOk());
  const auto events = Take<ReservationEvent>();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].change, Made::kExpired);
  EXPECT_EQ(events[0].device, MiB(10));
  EXPECT_EQ(events[0].host, MiB(1));
}

TEST_F(AnnouncerTest, AnExpiryIsToldInTimeByTheServer) {
  Admission real(
      {MiB(4), MiB(16), false, seconds(2), &log_},
      [this](auto accuracy) { return memory_.Measure(accuracy); }, Clock::Real());
  std::thread server([&] { real.ServeQueue(); });
  ASSERT_THAT(real.Reserve({"job", {{"all", MiB(1)}}, Bytes(0), milliseconds(50)}), IsOk());
  const auto renewed =
      real.Reserve({"renewed", {{"all", MiB(1)}}, Bytes(0), std::chrono::hours(1)});
  ASSERT_THAT(renewed, IsOk());
  const std::atomic<bool> stop = false;
  uint64_t position = 0;
  std::vector<Made> changes;
  while (changes.size() < 5) {
    log_.WaitBehind(position, stop);
    for (const auto &event : log_.Read(position, 10).events) {
      position = event->sequence;
      if (const auto *body = std::get_if<ReservationEvent>(&event->body)) {
        changes.push_back(body->change);
      }
    }
    // The server waits for an hour by now, or soon.
    if (changes.size() == 3) {
      ASSERT_THAT(real.Renew(renewed->id, milliseconds(50)), IsOk());
    }
  }
  EXPECT_THAT(changes, ElementsAre(Made::kMade, Made::kMade, Made::kExpired, Made::kRenewed,
                                   Made::kExpired));
  real.StopWaiting(Unavailable("DAEMON_STOPPING", "stopping"));
  server.join();
}

TEST_F(AnnouncerTest, AReservationEndsWithItsLastHolder) {
  const std::string id = Reserve(MiB(10), seconds(600), false);
  ASSERT_THAT(admission_.AddHolder(id), IsOk());
  Take<ReservationEvent>();
  EXPECT_TRUE(admission_.RemoveHolder(id));
  const auto events = Take<ReservationEvent>();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].change, Made::kEnded);
  EXPECT_EQ(events[0].device, MiB(10));
}

TEST_F(AnnouncerTest, TheQueue) {
  const std::string all = Reserve(MiB(60));
  const auto forget = [](const Result<ReserveResult> &) {};
  const TimePoint later = clock_.Now() + seconds(30);
  admission_.ReserveAsync(admission_.NewTicket(), {"one", {{"all", MiB(20)}}, {}, seconds(600)},
                          later, forget);
  admission_.DrawDeviceAsync(admission_.NewTicket(), MiB(10), {"w-7", "engine", std::nullopt, {}},
                             later, [](const Result<Draw> &) {});
  const uint64_t third = admission_.NewTicket();
  admission_.ReserveAsync(third, {"three", {{"all", MiB(60)}}, {}, seconds(600)}, later, forget);
  EXPECT_THAT(Take<QueueEvent>(), IsEmpty());
  admission_.ServeOnce();  // nothing fits
  auto events = Take<QueueEvent>();
  ASSERT_EQ(events.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events[i].change, Queued::kEntered);
    EXPECT_EQ(events[i].waiter, "q-" + std::to_string(i + 1));
    EXPECT_EQ(events[i].waiting, static_cast<int64_t>(i + 1));
  }
  EXPECT_EQ(events[0].name, "one");
  EXPECT_EQ(events[0].device, MiB(20));
  EXPECT_EQ(events[0].worker, WorkerId());
  EXPECT_EQ(events[1].worker, WorkerId(7));
  EXPECT_EQ(events[1].worker_name, "engine");

  admission_.CancelWait(third, Aborted("CANCELLED", "nobody wants it"));
  events = Take<QueueEvent>();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].change, Queued::kLeft);
  EXPECT_EQ(events[0].status.reason(), "CANCELLED");
  EXPECT_EQ(events[0].waiting, 2);

  ASSERT_THAT(admission_.Release(all), IsOk());
  const std::string most = Reserve(MiB(30));
  Take<QueueEvent>();
  admission_.ServeOnce();
  events = Take<QueueEvent>();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].change, Queued::kGranted);
  EXPECT_EQ(events[0].name, "one");
  EXPECT_EQ(events[0].waiting, 1);
  EXPECT_EQ(events[1].change, Queued::kGranted);
  EXPECT_EQ(events[1].waiting, 0);
}

TEST_F(AnnouncerTest, WhatIsServedInItsFirstRoundHasNotWaited) {
  const auto forget = [](const Result<ReserveResult> &) {};
  const TimePoint later = clock_.Now() + seconds(30);
  for (const int64_t size : {60, 61}) {
    admission_.ReserveAsync(admission_.NewTicket(), {"one", {{"all", MiB(size)}}, {}, seconds(600)},
                            later, forget);
    admission_.ServeOnce();
  }
  const uint64_t cancelled = admission_.NewTicket();
  admission_.ReserveAsync(cancelled, {"one", {{"all", MiB(1)}}, {}, seconds(600)}, later, forget);
  admission_.CancelWait(cancelled, Aborted("CANCELLED", "nobody wants it"));
  EXPECT_THAT(Take<QueueEvent>(), IsEmpty());
  EXPECT_THAT(Changes(), ElementsAre(Made::kMade));
}

TEST_F(AnnouncerTest, AWaitInVainLeavesWithItsError) {
  Reserve(MiB(60));
  admission_.ReserveAsync(admission_.NewTicket(), {"late", {{"all", MiB(20)}}, {}, seconds(600)},
                          clock_.Now() + seconds(1), [](const Result<ReserveResult> &) {});
  clock_.Advance(seconds(2));
  admission_.ServeOnce();
  const auto events = Take<QueueEvent>();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].change, Queued::kLeft);
  EXPECT_EQ(events[1].status.reason(), "RESERVATION_DEADLINE");
  EXPECT_EQ(events[1].waiting, 0);
}

TEST_F(AnnouncerTest, PressureBeginsAndEnds) {
  const auto budget = [](int64_t available, int64_t overcommitted) {
    BudgetStats stats;
    stats.total = MiB(200);
    stats.available = MiB(available);
    stats.overcommitted = MiB(overcommitted);
    return stats;
  };
  Announcer announcer(&log_);
  announcer.Measured(budget(10, 0));
  EXPECT_THAT(Take<PressureEvent>(), IsEmpty());
  announcer.Measured(budget(9, 0));
  announcer.Measured(budget(19, 0));
  auto events = Take<PressureEvent>();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_TRUE(events[0].low);
  EXPECT_FALSE(events[0].overcommitted);
  EXPECT_EQ(events[0].available, MiB(9));
  EXPECT_EQ(events[0].threshold, MiB(10));
  announcer.Measured(budget(0, 5));
  announcer.Measured(budget(20, 0));
  events = Take<PressureEvent>();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_TRUE(events[0].overcommitted);
  EXPECT_EQ(events[0].overcommitted_by, MiB(5));
  EXPECT_FALSE(events[1].low);
  EXPECT_FALSE(events[1].overcommitted);
}

}  // namespace
}  // namespace torpor
