#include "daemon/admission/admission.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

constexpr Bytes kTotal = MiB(64);

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() { Begin({MiB(4), MiB(16)}); }

  void Begin(const Admission::Options& options) {
    admission_ = std::make_unique<Admission>(
        options, [this](auto accuracy) { return memory_.Measure(accuracy); }, clock_);
  }
  // As an extent does: the draw lives as long as the memory.
  struct Memory {
    Draw draw;
    std::shared_ptr<PhysicalAllocation> allocation;
  };
  Memory Create(Draw draw) {
    auto allocation = *memory_.Create(draw.size());
    draw.MarkCreated();
    return {std::move(draw), std::move(allocation)};
  }
  void End(Memory& memory) {
    memory_.Release(std::move(memory.allocation));
    memory.draw.Return();
  }
  std::string Reserve(Bytes device, Bytes host = Bytes(0), Duration ttl = seconds(60)) {
    return admission_->Reserve({"job", {{"weights", device}}, host, ttl})->id;
  }
  // Another process takes device memory.
  MemoryHandle GrowOther(Bytes size) { return *host_->Create(size); }
  Bytes Available() { return admission_->Budget()->available; }

  std::unique_ptr<HostDriver> host_ = *HostDriver::CreateDevice({"admission", kTotal, MiB(1)});
  FaultDriver driver_{*host_};
  DeviceMemory memory_{driver_};
  ManualClock clock_;
  std::unique_ptr<Admission> admission_;
};

// --- the arithmetic

TEST_F(AdmissionTest, TheBudgetIsWhatIsFreeLessWhatIsPromised) {
  const MemoryHandle other = GrowOther(MiB(10));
  Memory memory = Create(*admission_->DrawDevice(MiB(8), ""));
  const Draw pending = *admission_->DrawDevice(MiB(3), "");
  const std::string id = Reserve(MiB(20));
  const BudgetStats budget = *admission_->Budget();
  EXPECT_EQ(budget.total, MiB(64));
  EXPECT_EQ(budget.free, MiB(46));
  EXPECT_EQ(budget.resident, MiB(8));
  EXPECT_EQ(budget.context, MiB(0));
  EXPECT_EQ(budget.other, MiB(10));
  EXPECT_EQ(budget.promised, MiB(20));
  EXPECT_EQ(budget.safety_reserve, MiB(4));
  EXPECT_EQ(budget.pending, MiB(3));
  EXPECT_EQ(budget.available, MiB(19));
  EXPECT_EQ(budget.overcommitted, MiB(0));
  End(memory);
  EXPECT_THAT(host_->Release(other), IsOk());
}

TEST_F(AdmissionTest, ARefusalTellsItsNumbersAndWhoHoldsPromises) {
  const std::string id = Reserve(MiB(50));
  const auto refused = admission_->DrawDevice(MiB(11), "");
  ASSERT_THAT(refused, HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_THAT(refused, HasCode(Code::kResourceExhausted));
  EXPECT_EQ(refused.status().Number("requested_bytes"), MiB(11).value());
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(10).value());
  EXPECT_EQ(refused.status().Number("promised_bytes"), MiB(50).value());
  EXPECT_EQ(refused.status().Number("safety_reserve_bytes"), MiB(4).value());
  EXPECT_EQ(refused.status().details().at("reservations"), "job (" + id + "): 52428800");
  EXPECT_THAT(admission_->DrawDevice(MiB(10), ""), IsOk());
}

TEST_F(AdmissionTest, AMeasurementThatFailsIsTold) {
  driver_.FailNth(CallKind::kGetMemoryInfo, 1, Internal("FAULT", "injected"));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), ""), HasReason("FAULT"));
  EXPECT_THAT(admission_->DrawDevice(MiB(60), ""), IsOk());
}

TEST_F(AdmissionTest, MayWantReservationsForEverything) {
  Begin({Bytes(0), Bytes(0), /*require_reservation=*/true});
  EXPECT_THAT(admission_->DrawDevice(MiB(1), ""), HasReason("RESERVATION_REQUIRED"));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), Reserve(MiB(1))), IsOk());
}

// --- draws

TEST_F(AdmissionTest, ADrawIsGivenBackWhenItEnds) {
  {
    const Draw draw = *admission_->DrawDevice(MiB(60), "");
    EXPECT_EQ(draw.size(), MiB(60));
    EXPECT_EQ(Available(), MiB(0));
  }
  EXPECT_EQ(Available(), MiB(60));
}

TEST_F(AdmissionTest, AMovedDrawIsGivenBackOnce) {
  Draw first = *admission_->DrawDevice(MiB(20), "");
  Draw second = *admission_->DrawDevice(MiB(30), "");
  second = std::move(first);  // gives the 30 back
  EXPECT_EQ(second.size(), MiB(20));
  EXPECT_EQ(Available(), MiB(40));
  Draw& same = second;
  second = std::move(same);
  EXPECT_EQ(Available(), MiB(40));
  second.Return();
  second.Return();
  EXPECT_EQ(Available(), MiB(60));
}

TEST_F(AdmissionTest, PartsOfADrawAreDrawsOfTheirOwn) {
  const std::string id = Reserve(MiB(20));
  Draw draw = *admission_->DrawDevice(MiB(20), id);
  Draw part = draw.Split(MiB(8));
  EXPECT_EQ(part.size(), MiB(8));
  EXPECT_EQ(draw.size(), MiB(12));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), id), HasReason("RESERVATION_TOO_SMALL"));
  part.Return();
  EXPECT_THAT(admission_->DrawDevice(MiB(9), id), HasReason("RESERVATION_TOO_SMALL"));
  EXPECT_THAT(admission_->DrawDevice(MiB(8), id), IsOk());
  EXPECT_EQ(draw.Split(MiB(100)).size(), MiB(12));  // no more than there is
  EXPECT_EQ(draw.size(), MiB(0));
  draw.Return();
  EXPECT_THAT(admission_->DrawDevice(MiB(20), id), IsOk());
}

TEST_F(AdmissionTest, FreedMemoryReturnsToItsPromise) {
  const std::string id = Reserve(MiB(20));
  Memory memory = Create(*admission_->DrawDevice(MiB(20), id));
  EXPECT_EQ(Available(), MiB(40));
  End(memory);
  EXPECT_EQ(Available(), MiB(40));
  EXPECT_EQ(admission_->Budget()->promised, MiB(20));
  EXPECT_THAT(admission_->DrawDevice(MiB(20), id), IsOk());
}

TEST_F(AdmissionTest, SurrenderedMemoryReturnsToTheFreeBudget) {
  const std::string id = Reserve(MiB(20));
  Memory memory = Create(*admission_->DrawDevice(MiB(12), id));
  memory.draw.Surrender();
  End(memory);
  EXPECT_EQ(Available(), MiB(52));
  const auto refused = admission_->DrawDevice(MiB(9), id);
  ASSERT_THAT(refused, HasReason("RESERVATION_TOO_SMALL"));
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(8).value());
  EXPECT_EQ(refused.status().Number("surrendered_bytes"), MiB(12).value());
  ASSERT_EQ(admission_->Reservations().size(), 1u);
  EXPECT_EQ(admission_->Reservations()[0].surrendered_device, MiB(12));
  EXPECT_EQ(admission_->Reservations()[0].drawn_device, MiB(0));
}

// --- reservations

TEST_F(AdmissionTest, PartsAreGrantedTogetherOrNotAtAll) {
  const auto granted =
      admission_->Reserve({"job",
                           {{"weights", MiB(30)}, {"kv_cache", MiB(20)}, {"workspace", MiB(0)}},
                           MiB(8),
                           seconds(60)});
  ASSERT_THAT(granted, IsOk());
  EXPECT_EQ(granted->budget.available, MiB(60));  // before it
  EXPECT_EQ(granted->expires, clock_.Now() + seconds(60));
  ASSERT_EQ(admission_->Reservations().size(), 1u);
  const ReservationStats stats = admission_->Reservations()[0];
  EXPECT_EQ(stats.id, granted->id);
  EXPECT_EQ(stats.name, "job");
  EXPECT_EQ(stats.parts.size(), 3u);
  EXPECT_EQ(stats.device, MiB(50));
  EXPECT_EQ(stats.host, MiB(8));
  EXPECT_THAT(
      admission_->Reserve({"b", {{"weights", MiB(5)}, {"kv_cache", MiB(6)}}, Bytes(0), seconds(1)}),
      HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_THAT(admission_->Reserve({"b", {{"weights", MiB(5)}}, MiB(9), seconds(1)}),
              HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_EQ(admission_->Reservations().size(), 1u);
  EXPECT_EQ(Available(), MiB(10));
}

TEST_F(AdmissionTest, BadReservationsAreRefusedWithTheirReason) {
  const auto reserve = [this](const std::string& name, std::vector<ReservationPart> parts,
                              Bytes host, Duration ttl) {
    return admission_->Reserve({name, std::move(parts), host, ttl}).status();
  };
  const Bytes petabyte(int64_t{1} << 50);
  const auto parts = [](size_t count, Bytes size) {
    return std::vector<ReservationPart>(count, {"a", size});
  };
  EXPECT_THAT(reserve("", {{"a", MiB(1)}}, MiB(0), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {{"a b", MiB(1)}}, MiB(0), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {{"a", Bytes(-1)}}, MiB(0), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {{"a", petabyte}}, MiB(0), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {}, MiB(0), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {{"a", MiB(0)}}, MiB(0), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {{"a", MiB(1)}}, Bytes(-1), seconds(1)), HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", parts(kMaxReservationParts + 1, MiB(0)), MiB(1), seconds(1)),
              HasReason("BAD_RESERVATION"));
  EXPECT_THAT(reserve("a", {{"a", MiB(1)}}, MiB(0), seconds(0)), HasReason("BAD_TTL"));
  EXPECT_THAT(reserve("a", {{"a", MiB(1)}}, MiB(0), std::chrono::hours(24 * 31)),
              HasReason("BAD_TTL"));
  // Absurd, but a size: nothing overflows on the way to the refusal.
  EXPECT_THAT(reserve("a", parts(kMaxReservationParts, petabyte - Bytes(1)), MiB(0), seconds(1)),
              HasReason("NEVER_FITS"));
  EXPECT_THAT(reserve("a", {}, Bytes(INT64_MAX), seconds(1)), HasReason("NEVER_FITS"));
  EXPECT_TRUE(admission_->Reservations().empty());
}

TEST_F(AdmissionTest, DrawsMoreThanTheReservationHasLeftAreRefused) {
  const std::string id = Reserve(MiB(10));
  const Draw draw = *admission_->DrawDevice(MiB(4), id);
  const auto refused = admission_->DrawDevice(MiB(7), id);
  ASSERT_THAT(refused, HasReason("RESERVATION_TOO_SMALL"));
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(6).value());
  EXPECT_EQ(refused.status().Number("drawn_bytes"), MiB(4).value());
  EXPECT_EQ(refused.status().Number("reserved_bytes"), MiB(10).value());
}

TEST_F(AdmissionTest, AnExpiredReservationLosesOnlyWhatWasNotDrawn) {
  const std::string id = Reserve(MiB(20), MiB(0), seconds(10));
  Memory memory = Create(*admission_->DrawDevice(MiB(8), id));
  clock_.Advance(seconds(10) - milliseconds(1));
  EXPECT_THAT(admission_->Check(id), IsOk());
  EXPECT_EQ(Available(), MiB(40));
  clock_.Advance(milliseconds(1));
  const Status expired = admission_->Check(id);
  EXPECT_EQ(expired.reason(), "RESERVATION_EXPIRED");
  EXPECT_EQ(expired.code(), Code::kFailedPrecondition);
  EXPECT_EQ(expired.Number("drawn_bytes"), MiB(8).value());
  EXPECT_THAT(admission_->DrawDevice(MiB(1), id), HasReason("RESERVATION_EXPIRED"));
  EXPECT_THAT(admission_->Release(id), HasReason("RESERVATION_EXPIRED"));
  EXPECT_TRUE(admission_->Reservations().empty());
  EXPECT_EQ(Available(), MiB(52));
  End(memory);  // to the free budget: there is no promise to return to
  EXPECT_EQ(Available(), MiB(60));
}

TEST_F(AdmissionTest, AReleasedReservationSaysWhatCameFree) {
  const std::string id = Reserve(MiB(20), MiB(8));
  Draw device = *admission_->DrawDevice(MiB(5), id);
  const Draw host = *admission_->DrawHost(MiB(2), id);
  const auto released = admission_->Release(id);
  ASSERT_THAT(released, IsOk());
  EXPECT_EQ(released->device, MiB(15));
  EXPECT_EQ(released->host, MiB(6));
  EXPECT_THAT(admission_->Release(id), HasReason("RESERVATION_RELEASED"));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), id), HasReason("RESERVATION_RELEASED"));
  EXPECT_EQ(Available(), MiB(55));
  device.Return();
  EXPECT_EQ(Available(), MiB(60));
}

TEST_F(AdmissionTest, UnknownReservationsAreNotFound) {
  EXPECT_THAT(admission_->Check("r-1"), HasReason("UNKNOWN_RESERVATION"));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), "r-1"), HasCode(Code::kNotFound));
  EXPECT_THAT(admission_->Release("r-1"), HasReason("UNKNOWN_RESERVATION"));
}

TEST_F(AdmissionTest, TheEndOfAReservationIsRememberedForAWhile) {
  const std::string id = Reserve(MiB(1), MiB(0), seconds(1));
  const std::string drawn_on = Reserve(MiB(1), MiB(0), seconds(1));
  const Draw draw = *admission_->DrawDevice(MiB(1), drawn_on);
  clock_.Advance(std::chrono::minutes(9));
  Reserve(MiB(1));
  EXPECT_THAT(admission_->Check(id), HasReason("RESERVATION_EXPIRED"));
  clock_.Advance(std::chrono::minutes(2));
  Reserve(MiB(1));
  EXPECT_THAT(admission_->Check(id), HasReason("UNKNOWN_RESERVATION"));
  EXPECT_THAT(admission_->Check(drawn_on), HasReason("RESERVATION_EXPIRED"));
}

TEST_F(AdmissionTest, SoIsWhoseItWas) {
  ReservationSpec spec;
  spec.name = "own";
  spec.parts = {{"weights", MiB(1)}};
  spec.ttl = seconds(60);
  spec.owner = "uid:1000";
  const auto made = admission_->Reserve(spec);
  ASSERT_THAT(made, IsOk());
  EXPECT_EQ(admission_->OwnerOf(made->id), "uid:1000");
  ASSERT_THAT(admission_->Release(made->id), IsOk());
  EXPECT_EQ(admission_->OwnerOf(made->id), "uid:1000");
  EXPECT_EQ(admission_->OwnerOf("r-99"), std::nullopt);
}

// What is remembered does not take part in sums: otherwise this takes minutes.
TEST_F(AdmissionTest, ReservingAndReleasingAllDaySlowsNothingDown) {
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_THAT(admission_->Release(Reserve(MiB(1))), IsOk());
  }
  EXPECT_THAT(admission_->Release("r-1"), HasReason("RESERVATION_RELEASED"));
  EXPECT_TRUE(admission_->Reservations().empty());
}

TEST_F(AdmissionTest, NoMoreEndsAreRememberedThanThereIsRoomFor) {
  for (size_t i = 0; i < Admission::kMaxPast + 2; ++i) {
    ASSERT_THAT(admission_->Release(Reserve(MiB(1))), IsOk());
  }
  EXPECT_THAT(admission_->Check("r-1"), HasReason("UNKNOWN_RESERVATION"));
  EXPECT_THAT(admission_->Check("r-3"), HasReason("RESERVATION_RELEASED"));
}

TEST_F(AdmissionTest, AReleasedReservationThatIsDrawnOnIsRememberedFromItsLastDraw) {
  const std::string id = Reserve(MiB(2));
  Draw draw = *admission_->DrawDevice(MiB(1), id);
  ASSERT_THAT(admission_->Release(id), IsOk());
  clock_.Advance(std::chrono::minutes(30));
  Reserve(MiB(1));
  EXPECT_THAT(admission_->Check(id), HasReason("RESERVATION_RELEASED"));
  draw.Return();
  EXPECT_THAT(admission_->Check(id), HasReason("RESERVATION_RELEASED"));
  Reserve(MiB(1));
  EXPECT_THAT(admission_->Check(id), HasReason("UNKNOWN_RESERVATION"));
}

TEST_F(AdmissionTest, AReservationThatIsOverIsRememberedWhileASessionDrawsOnIt) {
  const std::string id = Reserve(MiB(2));
  ASSERT_THAT(admission_->AddHolder(id), IsOk());
  ASSERT_THAT(admission_->Release(id), IsOk());
  clock_.Advance(std::chrono::minutes(30));
  Reserve(MiB(1));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), id), HasReason("RESERVATION_RELEASED"));
  EXPECT_FALSE(admission_->RemoveHolder(id));
  Reserve(MiB(1));
  EXPECT_THAT(admission_->Check(id), HasReason("UNKNOWN_RESERVATION"));
}

TEST_F(AdmissionTest, released_twice) {
  const std::string id = Reserve(MiB(20));
  Draw drawn = *admission_->DrawDevice(MiB(5), id);
  ASSERT_THAT(admission_->Release(id), IsOk());
  const auto again = admission_->Release(id);
  ASSERT_THAT(again, HasReason("RESERVATION_RELEASED"));
  EXPECT_THAT(again, HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(again.status().Number("drawn_bytes"), MiB(5).value());
  EXPECT_EQ(Available(), MiB(55));  // once
  EXPECT_THAT(admission_->Renew(id, seconds(60)), HasReason("RESERVATION_RELEASED"));
}

TEST_F(AdmissionTest, RenewalCountsFromNow) {
  const std::string id = Reserve(MiB(20), MiB(0), seconds(10));
  clock_.Advance(seconds(9));
  const auto renewed = admission_->Renew(id, seconds(5));
  ASSERT_THAT(renewed, IsOk());
  EXPECT_EQ(*renewed, clock_.Now() + seconds(5));
  clock_.Advance(seconds(4));
  EXPECT_THAT(admission_->Check(id), IsOk());
  EXPECT_THAT(admission_->Renew(id, seconds(0)), HasReason("BAD_TTL"));
  clock_.Advance(seconds(1));
  EXPECT_THAT(admission_->Renew(id, seconds(5)), HasReason("RESERVATION_EXPIRED"));
  EXPECT_THAT(admission_->Renew("r-9", seconds(5)), HasReason("UNKNOWN_RESERVATION"));
}

TEST_F(AdmissionTest, HeldMemoryReturnsToItsPromiseFromASleep) {
  ReservationSpec spec{"job", {{"weights", MiB(20)}}, MiB(0), seconds(60)};
  spec.hold = true;
  const std::string id = admission_->Reserve(spec)->id;
  Memory memory = Create(*admission_->DrawDevice(MiB(20), id));
  memory.draw.Surrender();
  End(memory);
  EXPECT_EQ(Available(), MiB(40));
  EXPECT_EQ(admission_->Reservations()[0].surrendered_device, MiB(0));
  EXPECT_TRUE(admission_->Reservations()[0].hold);
  EXPECT_THAT(admission_->DrawDevice(MiB(20), id), IsOk());
  // Not drawn, so an expiry takes it.
  clock_.Advance(seconds(60));
  EXPECT_EQ(Available(), MiB(60));
}

TEST_F(AdmissionTest, AReservationEndsWithItsLastHolder) {
  const std::string id = Reserve(MiB(20));
  EXPECT_THAT(admission_->AddHolder("r-9"), HasReason("UNKNOWN_RESERVATION"));
  ASSERT_THAT(admission_->AddHolder(id), IsOk());
  ASSERT_THAT(admission_->AddHolder(id), IsOk());
  EXPECT_EQ(admission_->Reservations()[0].holders, 2);
  EXPECT_FALSE(admission_->RemoveHolder(id));
  EXPECT_THAT(admission_->Check(id), IsOk());
  EXPECT_TRUE(admission_->RemoveHolder(id));
  EXPECT_THAT(admission_->Check(id), HasReason("RESERVATION_ENDED"));
  EXPECT_THAT(admission_->AddHolder(id), HasReason("RESERVATION_ENDED"));
  EXPECT_THAT(admission_->Release(id), HasReason("RESERVATION_ENDED"));
  EXPECT_EQ(Available(), MiB(60));
}

TEST_F(AdmissionTest, AKeptReservationOutlivesItsHolders) {
  ReservationSpec spec{"job", {{"weights", MiB(20)}}, MiB(0), seconds(60)};
  spec.keep = true;
  const std::string id = admission_->Reserve(spec)->id;
  ASSERT_THAT(admission_->AddHolder(id), IsOk());
  Memory memory = Create(*admission_->DrawDevice(MiB(20), id));
  End(memory);
  EXPECT_FALSE(admission_->RemoveHolder(id));
  EXPECT_EQ(Available(), MiB(40));
  ASSERT_THAT(admission_->AddHolder(id), IsOk());
  EXPECT_THAT(admission_->DrawDevice(MiB(20), id), IsOk());
  // Not beyond its time.
  clock_.Advance(seconds(60));
  EXPECT_FALSE(admission_->RemoveHolder(id));
  EXPECT_THAT(admission_->Check(id), HasReason("RESERVATION_EXPIRED"));
}

// --- other processes

TEST_F(AdmissionTest, NothingIsPromisedWhileBrokenPromisesAreOutstanding) {
  const std::string id = Reserve(MiB(40));
  const MemoryHandle other = GrowOther(MiB(30));
  const BudgetStats budget = *admission_->Budget();
  EXPECT_EQ(budget.overcommitted, MiB(6));
  EXPECT_EQ(budget.available, MiB(0));
  EXPECT_EQ(budget.other, MiB(30));
  EXPECT_THAT(admission_->DrawDevice(MiB(1), ""), HasReason("DEVICE_BUDGET_EXHAUSTED"));
  EXPECT_THAT(admission_->Reserve({"b", {{"a", MiB(1)}}, MiB(0), seconds(1)}),
              HasReason("DEVICE_BUDGET_EXHAUSTED"));
  // Host memory alone is another matter.
  EXPECT_THAT(admission_->Reserve({"b", {}, MiB(1), seconds(1)}), IsOk());
  EXPECT_THAT(host_->Release(other), IsOk());
  EXPECT_EQ(admission_->Budget()->overcommitted, MiB(0));
  EXPECT_EQ(Available(), MiB(20));
}

TEST_F(AdmissionTest, TheSafetyReserveIsGivenUpBeforeAPromise) {
  const std::string id = Reserve(MiB(60));
  const MemoryHandle other = GrowOther(MiB(4));
  EXPECT_EQ(admission_->Budget()->overcommitted, MiB(0));
  EXPECT_EQ(Available(), MiB(0));
  Memory memory = Create(*admission_->DrawDevice(MiB(60), id));
  End(memory);
  EXPECT_THAT(host_->Release(other), IsOk());
}

// --- host bytes

TEST_F(AdmissionTest, HostBytesComeOfThePromiseFirst) {
  const std::string id = Reserve(MiB(0), MiB(10));
  EXPECT_EQ(admission_->promised_host(), MiB(10));
  EXPECT_THAT(admission_->DrawHost(MiB(7), ""), HasReason("HOST_POOL_EXHAUSTED"));
  Draw draw = *admission_->DrawHost(MiB(12), id);  // 10 of the promise, 2 of the rest
  EXPECT_EQ(admission_->promised_host(), MiB(0));
  EXPECT_EQ(admission_->Reservations()[0].drawn_host, MiB(10));
  const auto refused = admission_->DrawHost(MiB(5), id);
  ASSERT_THAT(refused, HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_EQ(refused.status().Number("available_bytes"), MiB(4).value());
  EXPECT_EQ(refused.status().Number("used_bytes"), MiB(12).value());
  EXPECT_EQ(refused.status().Number("budget_bytes"), MiB(16).value());
  draw.Return();
  EXPECT_EQ(admission_->promised_host(), MiB(10));
}

TEST_F(AdmissionTest, AReservationThatIsOverPromisesNoHostBytes) {
  const std::string id = Reserve(MiB(0), MiB(10), seconds(1));
  Draw draw = *admission_->DrawHost(MiB(4), id);
  clock_.Advance(seconds(2));
  EXPECT_EQ(admission_->promised_host(), MiB(0));
  const auto rest = admission_->DrawHost(MiB(12), id);  // as anyone can
  EXPECT_THAT(rest, IsOk());
  EXPECT_THAT(admission_->DrawHost(MiB(1), id), HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_THAT(admission_->DrawHost(MiB(1), "r-99"), HasReason("HOST_POOL_EXHAUSTED"));
  draw.Return();
  EXPECT_EQ(admission_->promised_host(), MiB(0));
  EXPECT_THAT(admission_->DrawHost(MiB(4), ""), IsOk());
}

}  // namespace
}  // namespace torpor
