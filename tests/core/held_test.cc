// No lock that others need is held over a copy or a driver call: while one worker's operation is
// held at any of them, Usage, Reserve and Release answer, and another worker allocates and frees.
// (Copies of one direction are queued one after the other, so moves share that; concurrency_test
// has moves of opposite directions.)

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"

namespace torpor {
namespace {

class Held : public CoreFixture {
 protected:
  void SetUp() override {
    Start();
    held_ = Connect("held");
    other_ = Connect("other");
    ASSERT_THAT(held_->Allocate("weights", MiB(2), 1), IsOk());
    ASSERT_THAT(held_->Allocate("kv_cache", MiB(1), 2), IsOk());
    ASSERT_THAT(other_->Allocate("weights", MiB(2), 3), IsOk());
    // The first sleep takes the pool's memory.
    ASSERT_THAT(Sleep(All()), IsOk());
    ASSERT_THAT(Wake(All()), IsOk());
  }

  // Holds `operation` at its first call of each kind that it makes, one kind after the other.
  void HoldAtEach(const std::function<void()>& before, const std::function<Status()>& operation,
                  bool others_move) {
    int held = 0;
    for (int kind = 0; kind < kCallKinds; ++kind) {
      const auto call = static_cast<CallKind>(kind);
      SCOPED_TRACE(CallName(call));
      before();
      driver_->StopAt(call, 1);
      std::future<Status> running = std::async(std::launch::async, operation);
      while (running.wait_for(milliseconds(0)) != std::future_status::ready &&
             !driver_->WaitUntilStopped(In(milliseconds(1)))) {
      }
      if (running.wait_for(milliseconds(0)) != std::future_status::ready) {
        ++held;
        ExpectOthersGoOn(others_move);
        EXPECT_EQ(running.wait_for(milliseconds(0)), std::future_status::timeout);
      }
      driver_->Continue();
      EXPECT_THAT(running.get(), IsOk());
      ExpectBooksAgree();
    }
    EXPECT_GE(held, 4);
  }

  void ExpectOthersGoOn(bool move) {
    const auto others = std::async(std::launch::async, [&] {
      EXPECT_THAT(core_->Usage(), IsOk());
      ReservationSpec spec;
      spec.name = "other";
      spec.parts = {{"all", MiB(1)}};
      spec.ttl = seconds(60);
      const auto reserved = core_->Reserve(spec);
      ASSERT_THAT(reserved, IsOk());
      EXPECT_THAT(core_->Release(reserved->id), IsOk());
      ASSERT_THAT(other_->Allocate("weights", MiB(1), 4), IsOk());
      EXPECT_THAT(other_->Free(1), IsOk());
      if (!move) return;
      EXPECT_THAT(Sleep(Only(*other_)), IsOk());
      EXPECT_THAT(Wake(Only(*other_)), IsOk());
      EXPECT_TRUE(other_->AllHavePattern());
    });
    const bool went_on = others.wait_for(seconds(20)) == std::future_status::ready;
    EXPECT_TRUE(went_on);
    if (!went_on) driver_->Continue();
  }

  std::unique_ptr<TestWorker> held_;
  std::unique_ptr<TestWorker> other_;
};

TEST_F(Held, Sleep) {
  HoldAtEach([&] { ASSERT_THAT(Wake(Only(*held_)), IsOk()); },
             [&] { return CoreFixture::Sleep(Only(*held_)).status(); }, false);
}

TEST_F(Held, WakeUp) {
  HoldAtEach([&] { ASSERT_THAT(Sleep(Only(*held_)), IsOk()); },
             [&] { return Wake(Only(*held_)).status(); }, false);
}

TEST_F(Held, AllocateAndFree) {
  HoldAtEach([] {},
             [&] {
               const Status allocated = held_->Allocate("fresh", MiB(1), 5);
               return allocated.ok() ? held_->Free(held_->segments.size() - 1) : allocated;
             },
             true);
}

}  // namespace
}  // namespace torpor
