// Random operations of many workers against a model in plain memory.
//
//   property_test [--seed=N] [--steps=N]
//
// Sequential and WithFaults do one operation after the other and compare everything that can be
// seen after each (model.h); Concurrent lets all happen at once (concurrent_model.h) and compares
// when it has come to rest. The seeds are fixed; for longer runs or other seeds there are the
// flags.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "daemon/log.h"
#include "tests/core/concurrent_model.h"
#include "tests/core/model.h"

namespace torpor {
namespace {

uint64_t seed_flag = 0;
int steps_flag = 0;

int Steps(int usual) { return steps_flag > 0 ? steps_flag : usual; }

class Property : public ModelFixture, public testing::WithParamInterface<uint64_t> {
 protected:
  void Run(bool faults, int steps) {
    const uint64_t seed = seed_flag != 0 ? seed_flag : GetParam();
    StartModel(seed, faults);
    for (int step = 1; step <= steps && !HasFailure(); ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
      Step();
    }
    if (!HasFatalFailure()) Finish();
  }
};

TEST_P(Property, Sequential) { Run(false, Steps(1000)); }
TEST_P(Property, WithFaults) { Run(true, Steps(1000)); }
INSTANTIATE_TEST_SUITE_P(Seeds, Property, testing::Values(1, 2, 3));

class ConcurrentProperty : public ConcurrentModelFixture,
                           public testing::WithParamInterface<uint64_t> {};

TEST_P(ConcurrentProperty, Concurrent) {
  const uint64_t seed = seed_flag != 0 ? seed_flag : GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Run(seed, Steps(60));
}
INSTANTIATE_TEST_SUITE_P(Seeds, ConcurrentProperty, testing::Values(1, 2, 3));

}  // namespace
}  // namespace torpor

int main(int argc, char** argv) {
  torpor::log::SetLevel(torpor::log::Level::kError);
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--seed=", 0) == 0) {
      torpor::seed_flag = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else if (argument.rfind("--steps=", 0) == 0) {
      torpor::steps_flag = std::atoi(argument.c_str() + 8);
    } else {
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
