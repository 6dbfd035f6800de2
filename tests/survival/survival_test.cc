// Every step of every operation, and whatever can happen there: what docs/survival.md tells.
//
// TORPOR_SURVIVAL_EVERY=N: of the steps every Nth only (3), and the first and the last.
// TORPOR_SURVIVAL_OUT=FOLDER: files for table.py go there, and the document is not looked at.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/survival/documented.h"
#include "tests/survival/trial.h"

namespace torpor::survival {
namespace {

size_t Every() {
  const char* const text = std::getenv("TORPOR_SURVIVAL_EVERY");
  return text == nullptr ? 3 : static_cast<size_t>(std::max(1, std::atoi(text)));
}

constexpr char kAnew[] = "make docs/survival.md anew: tests/survival/survival.sh";

const char* Out() { return std::getenv("TORPOR_SURVIVAL_OUT"); }

// Whether an outcome depends on nothing that runs beside the step, and has to be the documented one
// each time.
bool IsSettled(Event event) {
  return event != Event::kWorkerKilled && event != Event::kWorkerStopped &&
         event != Event::kBothKilled && event != Event::kBothKilledNoName &&
         event != Event::kNoDescriptors;
}

// A line for each step: number, step, event, test, outcome, milliseconds.
class Lines {
 public:
  Lines(Operation operation, Event event) {
    const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
    test_ = std::string(test->test_suite_name()) + "." + test->name();
    head_ = std::string(Name(operation)) + "\t" + Name(event);
    if (Out() != nullptr) file_.open(std::string(Out()) + "/" + test_ + ".tsv");
  }
  void Add(size_t number, const Step& step, const std::string& outcome, const std::string& ms) {
    file_ << head_ << "\t" << number << "\t" << step.ToString() << "\t" << test_ << "\t" << outcome
          << "\t" << ms << "\n";
    file_.flush();
  }

 private:
  std::string test_;
  std::string head_;
  std::ofstream file_;
};

void AtEveryStep(Operation operation, Event event) {
  std::vector<Step> steps = StepsOf(operation);
  ASSERT_FALSE(testing::Test::HasFailure());
  ASSERT_FALSE(steps.empty());
  steps.insert(steps.begin(), TheCall());
  std::map<std::string, std::string> documented;
  if (Out() == nullptr) {
    const auto found = Documented(operation, event);
    ASSERT_THAT(found, IsOk());
    documented = *found;
    EXPECT_EQ(documented.size(), steps.size()) << kAnew;
  }
  Lines lines(operation, event);
  const size_t every = Every();
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string step = steps[i].ToString();
    SCOPED_TRACE(std::string(Name(event)) + " before " + step);
    if (Out() == nullptr) {
      EXPECT_FALSE(documented[step].empty()) << kAnew;
    }
    const bool end = i == 0 || i + 1 == steps.size();
    if (!end && (i + static_cast<size_t>(event)) % every != 0) continue;
    if (!Applies(event, steps[i])) {
      lines.Add(i, steps[i], "-", "-");
      continue;
    }
    const Cell cell = RunTrial(operation, event, steps[i]);
    const auto ms = std::chrono::duration_cast<milliseconds>(cell.recovery).count();
    lines.Add(i, steps[i], cell.outcome, std::to_string(ms));
    if (Out() == nullptr && IsSettled(event)) {
      EXPECT_EQ(cell.outcome, documented[step]) << kAnew;
    }
    if (testing::Test::HasFailure()) return;
  }
}

// NOLINTBEGIN(*-avoid-non-const-global-variables)
#define TORPOR_AT_EVERY_STEP(suite, event)                                   \
  TEST(suite, allocate) { AtEveryStep(Operation::kAllocate, Event::event); } \
  TEST(suite, free) { AtEveryStep(Operation::kFree, Event::event); }         \
  TEST(suite, sleep) { AtEveryStep(Operation::kSleep, Event::event); }       \
  TEST(suite, wake_up) { AtEveryStep(Operation::kWakeUp, Event::event); }    \
  TEST(suite, reserve) { AtEveryStep(Operation::kReserve, Event::event); }
// NOLINTEND(*-avoid-non-const-global-variables)

TORPOR_AT_EVERY_STEP(worker_killed_in_every_state, kWorkerKilled)
TORPOR_AT_EVERY_STEP(worker_stopped_not_dead, kWorkerStopped)
TORPOR_AT_EVERY_STEP(daemon_killed_in_every_state, kDaemonKilled)
TORPOR_AT_EVERY_STEP(daemon_stopped_in_every_state, kDaemonStopped)
TORPOR_AT_EVERY_STEP(keeper_killed_in_every_state, kKeeperKilled)
TORPOR_AT_EVERY_STEP(both_killed_in_every_state, kBothKilled)
TORPOR_AT_EVERY_STEP(both_killed_without_a_named_pool, kBothKilledNoName)
TORPOR_AT_EVERY_STEP(driver_error_in_every_state, kDriverError)
TORPOR_AT_EVERY_STEP(no_host_room_in_every_state, kNoHostRoom)
TORPOR_AT_EVERY_STEP(no_device_room_in_every_state, kNoDeviceRoom)
TORPOR_AT_EVERY_STEP(no_descriptors_in_every_state, kNoDescriptors)

}  // namespace
}  // namespace torpor::survival
