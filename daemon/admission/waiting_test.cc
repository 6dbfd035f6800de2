// Those that wait for memory: their order, what they get, and how a wait ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/admission/admission.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WaitingTest : public ::testing::Test {
 protected:
  // A reservation or draw that is waited for.
  struct Wait {
    uint64_t ticket = 0;
    std::optional<Status> status;  // of the answer, once there is one
    std::string id;
    Draw draw;
  };
  std::shared_ptr<Wait> Reserve(const std::string& name, Bytes device, Bytes host = Bytes(0),
                                Duration patience = seconds(30),
                                std::optional<uint64_t> place = std::nullopt) {
    auto wait = std::make_shared<Wait>();
    wait->ticket = admission_.NewTicket();
    admission_.ReserveAsync(
        wait->ticket, {name, {{"all", device}}, host, seconds(600)}, clock_.Now() + patience,
        [wait](Result<ReserveResult> result) {
          EXPECT_FALSE(wait->status.has_value());
          wait->status = result.status();
          if (result.ok()) wait->id = result->id;
        },
        place);
    return wait;
  }
  std::shared_ptr<Wait> Allocate(const Admission::Allocator& worker, Bytes size,
                                 Duration patience = seconds(30)) {
    auto wait = std::make_shared<Wait>();
    wait->ticket = admission_.NewTicket();
    admission_.DrawDeviceAsync(wait->ticket, size, worker, clock_.Now() + patience,
                               [wait](Result<Draw> result) {
                                 EXPECT_FALSE(wait->status.has_value());
                                 wait->status = result.status();
                                 if (result.ok()) wait->draw = *std::move(result);
                               });
    return wait;
  }
  std::shared_ptr<Wait> Allocate(const std::string& worker, Bytes size,
                                 Duration patience = seconds(30)) {
    return Allocate(Admission::Allocator{worker, "engine", std::nullopt, {}}, size, patience);
  }
  std::string ReserveNow(Bytes device) {
    auto reserved = admission_.Reserve({"now", {{"all", device}}, Bytes(0), seconds(600)});
    EXPECT_THAT(reserved, IsOk());
    return reserved.ok() ? reserved->id : "";
  }
  static bool Waits(const std::shared_ptr<Wait>& wait) { return !wait->status.has_value(); }
  std::vector<std::string> Queue() {
    std::vector<std::string> names;
    for (const WaiterStats& stats : admission_.Queue()) names.push_back(stats.name);
    return names;
  }

  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"waiting", MiB(64), MiB(1)});
  FaultDriver driver_{*host_};
  DeviceMemory memory_{driver_};
  ManualClock clock_;
  std::vector<MemoryHolder> holders_;
  Admission admission_{{MiB(4), MiB(16)},
                       [this](auto accuracy) { return memory_.Measure(accuracy); },
                       clock_,
                       [this] { return holders_; }};
};

TEST_F(WaitingTest, WhatFitsDoesNotWait) {
  const auto wait = Reserve("a", MiB(60));
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(wait));
  EXPECT_THAT(*wait->status, IsOk());
  EXPECT_THAT(Queue(), IsEmpty());
}

TEST_F(WaitingTest, FirstComeFirstServed) {
  const std::string all = ReserveNow(MiB(60));
  const auto first = Reserve("first", MiB(40));
  const auto second = Reserve("second", MiB(30));
  const auto third = Reserve("third", MiB(20));
  admission_.ServeOnce();
  EXPECT_THAT(Queue(), ElementsAre("first", "second", "third"));
  ASSERT_THAT(admission_.Release(all), IsOk());
  admission_.ServeOnce();
  EXPECT_FALSE(Waits(first));
  // 20 MiB are left: enough for the third, but the second comes before it.
  EXPECT_THAT(Queue(), ElementsAre("second", "third"));
  ASSERT_THAT(admission_.Release(first->id), IsOk());
  admission_.ServeOnce();
  EXPECT_FALSE(Waits(second));
  EXPECT_FALSE(Waits(third));
  EXPECT_EQ(admission_.Budget()->available, MiB(10));
}

TEST_F(WaitingTest, ASmallOneDoesNotWaitForWhatTheOneBeforeCannotUse) {
  const std::string all = ReserveNow(MiB(60));
  const auto host_too = Reserve("host", MiB(10), MiB(16));
  const Draw pool = *admission_.DrawHost(MiB(1), "");
  const auto second = Reserve("second", MiB(50));
  ASSERT_THAT(admission_.Release(all), IsOk());
  admission_.ServeOnce();
  // The first lacks host memory. Its 10 MiB stay for it; the rest is the second's.
  EXPECT_TRUE(Waits(host_too));
  EXPECT_FALSE(Waits(second));
}

TEST_F(WaitingTest, WhoComesLaterTakesNothingOfThoseThatWait) {
  const std::string held = ReserveNow(MiB(40));
  const auto waiting = Reserve("waiting", MiB(30));
  // 20 MiB are free, and all of them needed by the one that waits.
  const auto refused = admission_.Reserve({"late", {{"all", MiB(1)}}, Bytes(0), seconds(1)});
  ASSERT_THAT(refused, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(refused.status().Number("queued_bytes"), MiB(30).value());
  EXPECT_EQ(refused.status().Number("waiting"), 1);
  EXPECT_THAT(refused.status().message(), HasSubstr("30.00 MiB kept for those that wait"));
  ASSERT_THAT(admission_.Release(held), IsOk());
  // Served or not: beside the 30 MiB there is room.
  EXPECT_THAT(admission_.Reserve({"late", {{"all", MiB(30)}}, Bytes(0), seconds(1)}), IsOk());
  admission_.ServeOnce();
  EXPECT_FALSE(Waits(waiting));
}

TEST_F(WaitingTest, AllocationsPassTheQueueUntilItsFirstHasWaitedTwoSeconds) {
  const std::string held = ReserveNow(MiB(40));
  const auto first = Reserve("first", MiB(30));
  const auto second = Reserve("second", MiB(1));
  Draw passing = *admission_.DrawDevice(MiB(2), "");
  clock_.Advance(seconds(2));
  const auto refused = admission_.DrawDevice(MiB(2), "");
  ASSERT_THAT(refused, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(refused.status().Number("queued_bytes"), MiB(30).value());
  // Promises are kept, whoever waits.
  EXPECT_THAT(admission_.DrawDevice(MiB(40), held), IsOk());
  // The next one is passed for a while again.
  admission_.CancelWait(first->ticket, Aborted("TEST", "enough"));
  EXPECT_THAT(admission_.DrawDevice(MiB(18), ""), IsOk());
  passing.Return();
  admission_.ServeOnce();
  EXPECT_FALSE(Waits(second));
}

TEST_F(WaitingTest, APassedDeadlineEndsTheWaitWithTheArithmetic) {
  const std::string held = ReserveNow(MiB(50));
  holders_ = {{"w-1", "small", MiB(1)}, {"w-2", "none", MiB(0)}, {"w-3", "large", MiB(8)}};
  const auto wait = Reserve("model", MiB(20), Bytes(0), seconds(5));
  const auto allocation = Allocate("w-1", MiB(30), seconds(5));
  clock_.Advance(seconds(5) - milliseconds(1));
  admission_.ServeOnce();
  EXPECT_TRUE(Waits(wait));
  clock_.Advance(milliseconds(1));
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(wait));
  EXPECT_EQ(wait->status->code(), Code::kDeadlineExceeded);
  EXPECT_EQ(wait->status->reason(), "RESERVATION_DEADLINE");
  EXPECT_EQ(wait->status->Number("requested_bytes"), MiB(20).value());
  EXPECT_EQ(wait->status->Number("available_bytes"), MiB(10).value());
  EXPECT_EQ(wait->status->Number("promised_bytes"), MiB(50).value());
  EXPECT_EQ(wait->status->Number("waited_ms"), 5000);
  EXPECT_EQ(wait->status->details().at("reservations"), "now (" + held + "): 52428800");
  EXPECT_EQ(wait->status->details().at("workers"), "large (w-3): 8388608, small (w-1): 1048576");
  EXPECT_THAT(wait->status->message(), HasSubstr("resident: large (w-3) 8.00 MiB"));
  ASSERT_FALSE(Waits(allocation));
  EXPECT_EQ(allocation->status->reason(), "ALLOCATION_DEADLINE");
  EXPECT_THAT(Queue(), IsEmpty());
}

TEST_F(WaitingTest, TheTenLargestAreNamed) {
  for (int i = 1; i <= 12; ++i) {
    holders_.push_back({"w-" + std::to_string(i), "e", MiB(i)});
  }
  (void)ReserveNow(MiB(60));
  const auto refused = admission_.DrawDevice(MiB(1), "");
  const std::string workers = refused.status().details().at("workers");
  EXPECT_THAT(workers, HasSubstr("e (w-12): 12582912, e (w-11): "));
  EXPECT_THAT(workers, HasSubstr("e (w-3): 3145728 and 2 more"));
  EXPECT_THAT(workers, testing::Not(HasSubstr("w-2)")));
}

TEST_F(WaitingTest, WhatNeverFitsIsRefusedAtOnce) {
  const auto device = Reserve("a", MiB(61));
  const auto host = Reserve("a", MiB(1), MiB(17));
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(device));
  EXPECT_EQ(device->status->reason(), "NEVER_FITS");
  EXPECT_EQ(device->status->Number("most_bytes"), MiB(60).value());
  ASSERT_FALSE(Waits(host));
  EXPECT_EQ(host->status->reason(), "NEVER_FITS");
  EXPECT_EQ(host->status->Number("budget_bytes"), MiB(16).value());
  const auto allocation = Allocate("w-1", MiB(61));
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(allocation));
  EXPECT_EQ(allocation->status->reason(), "NEVER_FITS");
}

TEST_F(WaitingTest, ABadRequestDoesNotWait) {
  const auto wait = Reserve("no spaces", MiB(1));
  ASSERT_FALSE(Waits(wait));
  EXPECT_EQ(wait->status->reason(), "BAD_RESERVATION");
}

TEST_F(WaitingTest, TheQueueIsShown) {
  (void)ReserveNow(MiB(60));
  const TimePoint start = clock_.Now();
  (void)Reserve("model", MiB(20), MiB(3), seconds(7));
  clock_.Advance(seconds(1));
  (void)Allocate("w-4", MiB(2), seconds(9));
  const std::vector<WaiterStats> queue = admission_.Queue();
  ASSERT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue[0].id, "q-1");
  EXPECT_EQ(queue[0].name, "model");
  EXPECT_EQ(queue[0].worker, "");
  EXPECT_EQ(queue[0].parts.size(), 1u);
  EXPECT_EQ(queue[0].device, MiB(20));
  EXPECT_EQ(queue[0].host, MiB(3));
  EXPECT_EQ(queue[0].since, start);
  EXPECT_EQ(queue[0].deadline, start + seconds(7));
  EXPECT_EQ(queue[1].id, "q-2");
  EXPECT_EQ(queue[1].worker, "w-4");
  EXPECT_EQ(queue[1].name, "engine");
  admission_.StopWaiting(Unavailable("TEST", "over"));
}

TEST_F(WaitingTest, AWaitCanBeEndedFromOutside) {
  (void)ReserveNow(MiB(60));
  const auto a = Reserve("a", MiB(20));
  const auto b = Allocate("w-1", MiB(20));
  const auto c = Allocate("w-2", MiB(20));
  admission_.CancelWait(a->ticket, Aborted("TEST", "a"));
  ASSERT_FALSE(Waits(a));
  EXPECT_EQ(a->status->reason(), "TEST");
  admission_.CancelWait(a->ticket, Aborted("TEST", "twice"));
  admission_.CancelWaitsOf("w-1", Unavailable("WORKER_GONE", "gone"));
  ASSERT_FALSE(Waits(b));
  EXPECT_TRUE(Waits(c));
  admission_.StopWaiting(Unavailable("STOPPING", "over"));
  ASSERT_FALSE(Waits(c));
  EXPECT_EQ(c->status->reason(), "STOPPING");
  const auto d = Reserve("d", MiB(20));
  ASSERT_FALSE(Waits(d));
  EXPECT_EQ(d->status->reason(), "STOPPING");
}

TEST_F(WaitingTest, AsManyAsMayWaitAtATime) {
  (void)ReserveNow(MiB(60));
  for (size_t i = 0; i < Admission::kMaxWaitersOfWorker; ++i) {
    ASSERT_TRUE(Waits(Allocate("w-1", MiB(1))));
  }
  const auto refused = Allocate("w-1", MiB(1));
  ASSERT_FALSE(Waits(refused));
  EXPECT_EQ(refused->status->reason(), "QUEUE_FULL");
  EXPECT_EQ(refused->status->details().at("worker"), "w-1");
  for (int i = 2; Queue().size() < Admission::kMaxWaiters; ++i) {
    ASSERT_TRUE(Waits(Allocate("w-" + std::to_string(i), MiB(1))));
  }
  for (const auto& full : {Allocate("w-0", MiB(1)), Reserve("r", MiB(1))}) {
    ASSERT_FALSE(Waits(full));
    EXPECT_EQ(full->status->reason(), "QUEUE_FULL");
    EXPECT_EQ(full->status->Number("limit"), static_cast<int64_t>(Admission::kMaxWaiters));
  }
  admission_.StopWaiting(Aborted("TEST", "enough"));
}

// A deadline that is only that of its caller: another one goes on in its place.
TEST_F(WaitingTest, APlaceCanBeKept) {
  const std::string held = ReserveNow(MiB(30));
  const std::string more = ReserveNow(MiB(30));
  const auto first = Reserve("first", MiB(40), Bytes(0), seconds(5));
  const auto second = Reserve("second", MiB(40));
  const auto allocation = Allocate("w-1", MiB(10));
  clock_.Advance(seconds(5));
  ASSERT_THAT(admission_.Release(held), IsOk());
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(first));
  EXPECT_EQ(first->status->reason(), "RESERVATION_DEADLINE");
  // In the round in which it leaves, nobody takes what it would have needed.
  EXPECT_TRUE(Waits(allocation));
  const auto again = Reserve("again", MiB(40), Bytes(0), seconds(30), first->ticket);
  EXPECT_THAT(Queue(), ElementsAre("again", "second", "engine"));
  EXPECT_EQ(admission_.Queue()[0].id, "q-1");

  // Likewise an allocation that was granted memory which is not there.
  admission_.CancelWait(allocation->ticket, Aborted("TEST", ""));
  const TimePoint since = clock_.Now() - seconds(3);
  const auto third = Reserve("third", MiB(1));
  (void)Allocate({"w-1", "engine", allocation->ticket, since}, MiB(10));
  EXPECT_THAT(Queue(), ElementsAre("again", "second", "engine", "third"));
  EXPECT_EQ(admission_.Queue()[2].id, "q-3");
  EXPECT_EQ(admission_.Queue()[2].since, since);
  admission_.StopWaiting(Aborted("TEST", "enough"));
}

TEST_F(WaitingTest, WhatIsGrantedInOneRoundAddsUp) {
  const std::string held = ReserveNow(MiB(60));
  std::vector<std::shared_ptr<Wait>> waits = {
      Reserve("a", MiB(20), MiB(10)), Allocate("w-1", MiB(20)), Reserve("b", MiB(10)),
      Reserve("c", MiB(0), MiB(7)),   Reserve("d", MiB(11)),    Reserve("e", MiB(0), MiB(6))};
  ASSERT_THAT(admission_.Release(held), IsOk());
  admission_.ServeOnce();
  EXPECT_THAT(Queue(), ElementsAre("c", "d", "e"));
  // Of the device 10 MiB are left, of the pool 6, which are kept for the one that wants 7.
  const auto late = admission_.Reserve({"f", {{"all", MiB(1)}}, Bytes(0), seconds(1)});
  EXPECT_EQ(late.status().Number("promised_bytes"), MiB(30).value());
  EXPECT_EQ(late.status().Number("pending_bytes"), MiB(20).value());
  admission_.StopWaiting(Aborted("TEST", "enough"));
}

TEST_F(WaitingTest, TheAbsurdOverflowsNothing) {
  const std::vector<ReservationPart> parts(kMaxReservationParts, {"a", kAbsurd - Bytes(1)});
  int refused = 0;
  for (size_t i = 0; i < kMaxReservations; ++i) {
    admission_.ReserveAsync(admission_.NewTicket(), {"r", parts, Bytes(INT64_MAX), seconds(1)},
                            clock_.Now() + seconds(1), [&](const Result<ReserveResult>& result) {
                              EXPECT_THAT(result, HasReason("NEVER_FITS"));
                              ++refused;
                            });
  }
  EXPECT_THAT(admission_.Reserve({"f", {{"all", MiB(1)}}, Bytes(0), seconds(1)}),
              HasReason("DEVICE_BUDGET_EXHAUSTED"));
  admission_.ServeOnce();
  EXPECT_EQ(refused, static_cast<int>(kMaxReservations));
}

TEST_F(WaitingTest, LiveReservationsHaveALimit) {
  const auto reserve = [this](Bytes size) {
    return admission_.Reserve({"r", {{"all", size}}, Bytes(0), seconds(60)});
  };
  const std::string first = ReserveNow(MiB(59));
  std::vector<std::shared_ptr<Wait>> waits;
  waits.reserve(10);
  for (int i = 0; i < 10; ++i) waits.push_back(Reserve("waits", MiB(2)));
  const auto one = reserve(Bytes(1));
  EXPECT_THAT(one, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  for (size_t i = 0; i < kMaxReservations - 11; ++i) {
    ASSERT_THAT(admission_.Reserve({"host", {}, Bytes(1), seconds(60)}), IsOk());
  }
  const auto refused = admission_.Reserve({"host", {}, Bytes(1), seconds(60)});
  ASSERT_THAT(refused, HasReason("TOO_MANY_RESERVATIONS"));
  EXPECT_THAT(refused, HasCode(Code::kResourceExhausted));
  EXPECT_EQ(refused.status().Number("reservations"), static_cast<int64_t>(kMaxReservations) - 10);
  EXPECT_EQ(refused.status().Number("waiting"), 10);
  EXPECT_EQ(refused.status().Number("limit"), static_cast<int64_t>(kMaxReservations));
  const auto waits_not = Reserve("waits", MiB(2));
  ASSERT_FALSE(Waits(waits_not));
  EXPECT_EQ(waits_not->status->reason(), "TOO_MANY_RESERVATIONS");
  // Allocations are no reservations, and those that wait are counted in.
  EXPECT_TRUE(Waits(Allocate("w-1", MiB(2))));
  ASSERT_THAT(admission_.Release(first), IsOk());
  admission_.ServeOnce();
  for (const auto& wait : waits) {
    ASSERT_FALSE(Waits(wait));
    EXPECT_THAT(*wait->status, IsOk());
  }
  EXPECT_THAT(reserve(MiB(1)), IsOk());
  EXPECT_THAT(reserve(MiB(1)), HasReason("TOO_MANY_RESERVATIONS"));
  // What is over does not count.
  clock_.Advance(seconds(60));
  EXPECT_THAT(reserve(MiB(1)), IsOk());
}

TEST_F(WaitingTest, AMeasurementThatFailsEndsNoWaitBeforeItsDeadline) {
  const std::string held = ReserveNow(MiB(60));
  const auto wait = Reserve("a", MiB(20), Bytes(0), seconds(1));
  driver_.FailNth(CallKind::kGetMemoryInfo, 1, Internal("FAULT", "injected"));
  admission_.ServeOnce();
  EXPECT_TRUE(Waits(wait));
  driver_.FailNth(CallKind::kGetMemoryInfo, 1, Internal("FAULT", "injected"));
  clock_.Advance(seconds(1));
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(wait));
  EXPECT_EQ(wait->status->reason(), "RESERVATION_DEADLINE");
}

// Each of two holds what the other waits for, and neither lets go: both end at their deadline. When
// one of them lets go, the other gets what it waits for, as a whole.
TEST_F(WaitingTest, no_deadlock_between_waiters) {
  const std::string a = ReserveNow(MiB(30));
  const std::string b = ReserveNow(MiB(30));
  const auto more_for_a = Reserve("a", MiB(20), Bytes(0), seconds(5));
  const auto more_for_b = Reserve("b", MiB(20), Bytes(0), seconds(10));
  admission_.ServeOnce();
  // Nothing was taken meanwhile: there are no parts to hold.
  EXPECT_EQ(admission_.Budget()->promised, MiB(60));
  clock_.Advance(seconds(5));
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(more_for_a));
  EXPECT_EQ(more_for_a->status->reason(), "RESERVATION_DEADLINE");
  EXPECT_TRUE(Waits(more_for_b));
  ASSERT_THAT(admission_.Release(a), IsOk());
  admission_.ServeOnce();
  ASSERT_FALSE(Waits(more_for_b));
  EXPECT_THAT(*more_for_b->status, IsOk());
  ASSERT_THAT(admission_.Release(b), IsOk());
}

TEST_F(WaitingTest, TheQueueIsServedByItsThread) {
  std::thread server([this] { admission_.ServeQueue(); });
  const std::string held = ReserveNow(MiB(60));
  const MemoryHandle other = *host_->Create(MiB(2));
  std::atomic<int> granted{0};
  const auto reserve = [&](Bytes size) {
    admission_.ReserveAsync(admission_.NewTicket(), {"a", {{"all", size}}, Bytes(0), seconds(600)},
                            clock_.Now() + seconds(60), [&](const Result<ReserveResult>& result) {
                              EXPECT_THAT(result, IsOk());
                              ++granted;
                            });
  };
  const auto wait_for = [&](int count) {
    while (granted != count) std::this_thread::sleep_for(milliseconds(1));
  };
  reserve(MiB(58));
  ASSERT_THAT(admission_.Release(held), IsOk());
  wait_for(1);
  // Memory that comes free without anyone saying so.
  reserve(MiB(2));
  ASSERT_THAT(host_->Release(other), IsOk());
  wait_for(2);
  admission_.StopWaiting(Unavailable("STOPPING", "over"));
  server.join();
}

// Waiters of all sizes, while allocations come and go: none is passed over for ever, and those of
// one round come in their order.
TEST_F(WaitingTest, NobodyIsPassedOverForEver) {
  std::mt19937 random(5);
  std::vector<Draw> draws;
  std::vector<std::shared_ptr<Wait>> waits;
  int waited = 0;
  for (int step = 0; step < 3000; ++step) {
    clock_.Advance(milliseconds(100));
    if (auto draw = admission_.DrawDevice(MiB(1 + static_cast<int64_t>(random() % 8)), "");
        draw.ok()) {
      draws.push_back(*std::move(draw));
    }
    if (!draws.empty() && random() % 2 == 0) {
      draws.erase(draws.begin() + static_cast<ptrdiff_t>(random() % draws.size()));
    }
    if (random() % 64 == 0) {
      waits.push_back(Reserve("r", MiB(1 + static_cast<int64_t>(random() % 60)), Bytes(0),
                              std::chrono::hours(1)));
      admission_.ServeOnce();
      if (Waits(waits.back())) ++waited;
    }
    admission_.ServeOnce();
    for (auto it = waits.begin(); it != waits.end();) {
      if (Waits(*it)) {
        ++it;
        continue;
      }
      ASSERT_EQ(it, waits.begin()) << "out of turn, though its sum would have fit: " << step;
      ASSERT_THAT(admission_.Release((*it)->id), IsOk());
      it = waits.erase(it);
    }
  }
  EXPECT_GT(waited, 5);
  for (int step = 0; step < 1000 && !waits.empty(); ++step) {
    clock_.Advance(milliseconds(100));
    if (!draws.empty()) draws.pop_back();
    admission_.ServeOnce();
    while (!waits.empty() && !Waits(waits.front())) {
      ASSERT_THAT(admission_.Release(waits.front()->id), IsOk());
      waits.erase(waits.begin());
    }
  }
  EXPECT_TRUE(waits.empty());
}

}  // namespace
}  // namespace torpor
