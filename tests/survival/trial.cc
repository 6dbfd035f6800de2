#include "tests/survival/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <thread>

#include "lib/base/status_matchers.h"

namespace torpor::survival {
namespace {

constexpr Duration kPatient = seconds(20);
constexpr Duration kImpatient = milliseconds(300);
constexpr Duration kStop = milliseconds(100);
// For what goes on beside a step that is held, so that every run of it finds the same.
constexpr Duration kBeside = milliseconds(20);
constexpr char kNotReached[] = "not reached";

TimePoint Now() { return Clock::Real().Now(); }

// What became of the operation, as the books have it. Lost: the segments it was about have no
// daemon any more. Gone: the worker.
enum class End { kDone, kUndone, kLost, kGone, kTorn };

End EndOf(Operation operation, const v1::UsageResponse& usage) {
  if (operation == Operation::kReserve) {
    for (const v1::ReservationUsage& one : usage.reservations()) {
      if (one.name() == Scene::kReservation) return End::kDone;
    }
    return End::kUndone;
  }
  auto tags = Scene::TagsOf(usage, "victim");
  if (tags.empty()) return End::kGone;
  const Tag weights = tags["weights"];
  if (weights.segments == 0) return End::kLost;
  const Tag cache = tags["kv_cache"];
  const bool awake = weights.offloaded == 0 && cache.discarded == 0 && cache.resident != 0;
  const bool asleep = weights.resident == 0 && cache.resident == 0 && cache.discarded != 0;
  switch (operation) {
    case Operation::kAllocate:
      return !awake ? End::kTorn : weights.segments == 3 ? End::kDone : End::kUndone;
    case Operation::kFree:
      return !awake ? End::kTorn : weights.segments == 1 ? End::kDone : End::kUndone;
    case Operation::kSleep:
      return asleep ? End::kDone : awake ? End::kUndone : End::kTorn;
    default:
      return awake ? End::kDone : asleep ? End::kUndone : End::kTorn;
  }
}

std::string Say(End end, const Answer& answer) {
  std::string text = end == End::kDone     ? "done"
                     : end == End::kUndone ? "undone"
                     : end == End::kLost   ? "lost"
                                           : "gone";
  if (!answer.lost && !answer.status.ok()) text += ", " + answer.status.reason();
  return text;
}

class Trial {
 public:
  Trial(Operation operation, Event event)
      : operation_(operation),
        event_(event),
        both_(event == Event::kBothKilled || event == Event::kBothKilledNoName),
        scene_(operation, event == Event::kWorkerStopped ? kImpatient : kPatient,
               event == Event::kBothKilled) {}

  std::vector<Step> Trace() {
    std::vector<Step> steps;
    [&] {
      ASSERT_THAT(scene_.Start(), IsOk());
      scene_.board().Trace();
      scene_.Begin();
      const Answer answer = scene_.AwaitEnd();
      EXPECT_THAT(answer.status, IsOk());
      steps = scene_.board().Disarm();
      Settle(answer);
    }();
    Log();
    return steps;
  }

  Cell Run(const Step& step) {
    [&] { ASSERT_NO_FATAL_FAILURE(RunOrFail(step)); }();
    Log();
    return cell_;
  }

 private:
  void RunOrFail(const Step& step) {
    ASSERT_THAT(scene_.Start(), IsOk());
    before_ = step == TheCall();
    if (!before_) {
      if (event_ == Event::kDriverError) {
        scene_.board().FailAt(step);
      } else {
        scene_.board().StopAt(step);
      }
      scene_.Begin();
      if (!scene_.AwaitStep()) {
        cell_.outcome = kNotReached;
        return;
      }
      if (event_ != Event::kDriverError) std::this_thread::sleep_for(kBeside);
    }
    ASSERT_NO_FATAL_FAILURE(Happen());
    ASSERT_NO_FATAL_FAILURE(Settle(scene_.AwaitEnd()));
  }

  void Go() {
    if (before_) return scene_.Begin();
    (void)scene_.board().Disarm();
  }

  void Happen() {
    KeeperProcess& keeper = scene_.keeper();
    const auto daemon = keeper.daemon();
    since_ = Now();
    switch (event_) {
      case Event::kWorkerKilled:
        scene_.victim().process().Signal(SIGKILL);
        return Go();
      case Event::kWorkerStopped:
        scene_.victim().process().Signal(SIGSTOP);
        Go();
        // A call of its own does not end before it goes on; the daemon's patience does.
        if (operation_ == Operation::kAllocate || operation_ == Operation::kFree) {
          std::this_thread::sleep_for(kImpatient * 2);
        } else {
          (void)scene_.AwaitEnd();
        }
        since_ = Now();
        scene_.victim().process().Signal(SIGCONT);
        return;
      case Event::kDaemonKilled:
        keeper.KillDaemon();
        Go();
        ASSERT_THAT(keeper.AwaitDaemon(*daemon), IsOk());
        return;
      case Event::kDaemonStopped:
        keeper.SignalDaemon(SIGSTOP);
        Go();
        std::this_thread::sleep_for(kStop);
        since_ = Now();
        keeper.SignalDaemon(SIGCONT);
        return;
      case Event::kKeeperKilled:
        keeper.KillKeeper();
        Go();
        (void)scene_.AwaitEnd();
        // The daemon has noticed.
        ASSERT_THAT(keeper.AwaitUsage([](const v1::UsageResponse& usage) {
          return usage.protection().code() != 0;
        }),
                    IsOk());
        ASSERT_THAT(keeper.Start(), IsOk());
        return;
      case Event::kBothKilled:
      case Event::kBothKilledNoName:
        keeper.KillKeeper();
        keeper.KillDaemon();
        Go();
        ASSERT_THAT(keeper.Start(), IsOk());
        return;
      case Event::kDriverError:
        return;
      case Event::kNoHostRoom:
      case Event::kNoDeviceRoom:
        ASSERT_THAT(scene_.TakeRoom(event_ == Event::kNoHostRoom), IsOk());
        Go();
        (void)scene_.AwaitEnd();
        ASSERT_THAT(scene_.ReturnRoom(), IsOk());
        return;
      case Event::kNoDescriptors:
        ASSERT_THAT(scene_.TakeDescriptors(), IsOk());
        Go();
        (void)scene_.AwaitEnd();
        ASSERT_THAT(scene_.RestoreDescriptors(), IsOk());
        return;
    }
  }

  void Settle(const Answer& answer) {
    const bool alone = event_ == Event::kWorkerKilled;
    const auto usage = scene_.AwaitRest(alone ? 1 : 2);
    ASSERT_THAT(usage, IsOk());
    cell_.recovery = Now() - since_;
    End end = EndOf(operation_, *usage);
    // What it had is lost; this is about the operation.
    const bool own = operation_ == Operation::kAllocate || operation_ == Operation::kFree;
    if (both_ && own) end = answer.status.ok() ? End::kDone : End::kUndone;
    ASSERT_NE(end, End::kTorn) << usage->ShortDebugString();
    EXPECT_EQ(end == End::kGone, alone && operation_ != Operation::kReserve);
    if (!both_) {
      EXPECT_NE(end, End::kLost);
    }
    cell_.outcome = Say(end, answer);
    if (answer.status.ok() || answer.committed) {
      EXPECT_TRUE(end == End::kDone || end == End::kGone) << cell_.outcome;
    } else if (!answer.lost && operation_ != Operation::kFree) {
      EXPECT_TRUE(end == End::kUndone || end == End::kGone) << answer.status.ToString();
    }
    CheckSums(*usage, end);
    if (both_) return CheckAfterBoth(end);
    ASSERT_NO_FATAL_FAILURE(CheckNeighbour());
    if (!alone) {
      ASSERT_NO_FATAL_FAILURE(CheckVictim(end));
    }
  }

  void CheckSums(const v1::UsageResponse& usage, End end) {
    int64_t resident = 0;
    int64_t offloaded = 0;
    for (const char* const name : {"victim", "neighbour"}) {
      for (const auto& [tag, bytes] : Scene::TagsOf(usage, name)) {
        resident += bytes.resident;
        offloaded += bytes.offloaded;
      }
    }
    // The worker could not unmap it: that is tried again with its next work.
    const bool kept = operation_ == Operation::kFree && event_ == Event::kDriverError &&
                      usage.device().resident_bytes() == resident + Scene::kFreed;
    EXPECT_EQ(usage.device().resident_bytes(), resident + (kept ? Scene::kFreed : 0))
        << usage.ShortDebugString();
    EXPECT_EQ(usage.host_pool().used_bytes(), offloaded) << usage.ShortDebugString();
    const bool reserved = operation_ == Operation::kReserve && end == End::kDone;
    EXPECT_EQ(usage.device().promised_bytes(), reserved ? Scene::kReservedDevice : 0);
    EXPECT_EQ(usage.host_pool().promised_bytes(), reserved ? Scene::kReservedHost : 0);
    auto victim = Scene::TagsOf(usage, "victim");
    auto neighbour = Scene::TagsOf(usage, "neighbour");
    if (event_ != Event::kBothKilledNoName) {
      EXPECT_EQ(neighbour["adapter"].offloaded, Scene::kAdapter);
      if (event_ != Event::kWorkerKilled) {
        EXPECT_EQ(victim["adapter"].offloaded, Scene::kAdapter);
      }
    }
    EXPECT_EQ(neighbour["weights"].resident, both_ ? 0 : Scene::kNeighbourWeights);
  }

  void CheckNeighbour() {
    WorkerProcess& neighbour = scene_.neighbour();
    ASSERT_THAT(neighbour.Ask("check 1 1"), IsOk());
    for (int turn = 0; turn < 2; ++turn) {
      ASSERT_THAT(neighbour.Ask("wake"), IsOk());
      ASSERT_THAT(neighbour.Ask("check 1 1"), IsOk());
      ASSERT_THAT(neighbour.Ask("check 2 2"), IsOk());
      ASSERT_THAT(neighbour.Ask("sleep 1"), IsOk());
    }
  }

  void CheckVictim(End end) {
    WorkerProcess& victim = scene_.victim();
    const bool was_asleep =
        operation_ == Operation::kWakeUp || (operation_ == Operation::kSleep && end == End::kDone);
    const bool freed = operation_ == Operation::kFree && end == End::kDone;
    const bool allocated = operation_ == Operation::kAllocate && end == End::kDone;
    std::string cache = was_asleep ? "checkzero 3" : "check 3 3";
    for (int turn = 0; turn < 2; ++turn) {
      ASSERT_THAT(victim.Ask("wake"), IsOk());
      EXPECT_THAT(victim.Ask("check 1 1"), IsOk());
      if (!freed) {
        EXPECT_THAT(victim.Ask("check 2 2"), IsOk());
      }
      EXPECT_THAT(victim.Ask(cache), IsOk());
      EXPECT_THAT(victim.Ask("check 4 4"), IsOk());
      if (allocated) {
        EXPECT_THAT(victim.Ask("check 5 5"), IsOk());
      }
      ASSERT_THAT(victim.Ask("sleep 1"), IsOk());
      cache = "checkzero 3";
    }
    ASSERT_THAT(victim.Ask("wake"), IsOk());
    EXPECT_THAT(victim.Ask("alloc weights 64KiB 6"), IsOk());
    const auto usage = scene_.AwaitRest(2);
    ASSERT_THAT(usage, IsOk());
    int64_t resident = Scene::kWeights + Scene::kCache + Scene::kAdapter + Scene::kNew;
    if (freed) resident -= Scene::kFreed;
    if (allocated) resident += Scene::kNew;
    EXPECT_EQ(usage->device().resident_bytes(), resident) << usage->ShortDebugString();
  }

  // What the daemon has lost it has told, and the worker that has it still can use it; nobody ever
  // sees other bytes.
  void CheckAfterBoth(End end) {
    const bool named = event_ == Event::kBothKilled;
    EXPECT_THAT(scene_.neighbour().Ask("wake"), IsOk());
    EXPECT_THAT(scene_.victim().Ask("wake"), IsOk());
    EXPECT_TRUE(Has(scene_.neighbour(), "check 1 1"));
    EXPECT_EQ(Has(scene_.neighbour(), "check 2 2"), named);
    EXPECT_EQ(Has(scene_.victim(), "check 4 4"), named);
    const bool has = Has(scene_.victim(), "check 1 1");
    const bool moved = operation_ == Operation::kSleep || operation_ == Operation::kWakeUp;
    if (!moved || end != End::kLost) {
      EXPECT_TRUE(has);
    } else {
      cell_.outcome += has ? ", usable" : ", SEGMENTS_LOST";
    }
    // Both go on with what they have, and with more.
    for (WorkerProcess* const worker : {&scene_.neighbour(), &scene_.victim()}) {
      const auto segment = worker->Allocate("more", "64KiB", 6);
      ASSERT_THAT(segment, IsOk());
      EXPECT_THAT(worker->Ask("sleep 1"), IsOk());
      EXPECT_THAT(worker->Ask("wake"), IsOk());
      EXPECT_THAT(worker->Ask("check " + *segment + " 6"), IsOk());
    }
  }

  // Or it is told that it has them no more.
  static bool Has(WorkerProcess& worker, const std::string& check) {
    const auto checked = worker.Ask(check);
    if (!checked.ok()) {
      EXPECT_THAT(checked, HasReason("SEGMENTS_LOST")) << check;
    }
    return checked.ok();
  }

  void Log() {
    if (testing::Test::HasFailure()) std::fputs(scene_.keeper().log().c_str(), stderr);
  }

  const Operation operation_;
  const Event event_;
  const bool both_;
  bool before_ = false;
  Scene scene_;
  TimePoint since_;
  Cell cell_;
};

}  // namespace

const char* Name(Event event) {
  switch (event) {
    case Event::kWorkerKilled:
      return "worker killed";
    case Event::kWorkerStopped:
      return "worker stopped";
    case Event::kDaemonKilled:
      return "daemon killed";
    case Event::kDaemonStopped:
      return "daemon stopped";
    case Event::kKeeperKilled:
      return "keeper killed";
    case Event::kBothKilled:
      return "both killed";
    case Event::kBothKilledNoName:
      return "both killed, pool without a name";
    case Event::kDriverError:
      return "driver error";
    case Event::kNoHostRoom:
      return "no host room";
    case Event::kNoDeviceRoom:
      return "no device room";
    case Event::kNoDescriptors:
      return "no descriptors";
  }
  return "?";
}

Step TheCall() { return {"the call", 0}; }

std::vector<Step> StepsOf(Operation operation) {
  return Trial(operation, Event::kDriverError).Trace();
}

bool Applies(Event event, const Step& step) {
  if (event != Event::kDriverError) return true;
  return step.name.rfind("daemon: ", 0) == 0 || step.name.rfind("worker: ", 0) == 0;
}

Cell RunTrial(Operation operation, Event event, const Step& step) {
  // What runs side by side may go another way now and then.
  for (int attempt = 0; attempt < 3; ++attempt) {
    Cell cell = Trial(operation, event).Run(step);
    if (cell.outcome != kNotReached) return cell;
  }
  ADD_FAILURE() << "not reached any more";
  return {kNotReached, {}};
}

}  // namespace torpor::survival
