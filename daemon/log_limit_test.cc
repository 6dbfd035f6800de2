#include "daemon/log_limit.h"

#include <gtest/gtest.h>

#include <string>

namespace torpor::log {
namespace {

TEST(LogLimitTest, CountsWhatItLeavesOut) {
  ManualClock clock;
  Limit limit({seconds(5), 1, 64}, clock);
  EXPECT_EQ(limit.Count("a"), 1);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(limit.Count("a"), 0);
  EXPECT_EQ(limit.Count("b"), 1) << "another kind";
  clock.Advance(seconds(4));
  EXPECT_EQ(limit.Count("a"), 0);
  clock.Advance(seconds(1));
  EXPECT_EQ(limit.Count("a"), 9);
  EXPECT_EQ(limit.Count("a"), 0);
  clock.Advance(seconds(5));
  EXPECT_EQ(limit.Count("b"), 1);
}

TEST(LogLimitTest, LetsAFewThrough) {
  ManualClock clock;
  Limit limit({seconds(5), 3, 64}, clock);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Count("a"), 1);
  EXPECT_EQ(limit.Count("a"), 0);
  clock.Advance(seconds(5));
  EXPECT_EQ(limit.Count("a"), 2);
  EXPECT_EQ(limit.Count("a"), 1);
  EXPECT_EQ(limit.Count("a"), 1);
  EXPECT_EQ(limit.Count("a"), 0);
}

TEST(LogLimitTest, KindsWithoutEndCountAsOne) {
  ManualClock clock;
  Limit limit({seconds(5), 1, 4}, clock);
  int lines = 0;
  for (int i = 0; i < 1000; ++i) lines += limit.Count(std::to_string(i)) > 0 ? 1 : 0;
  EXPECT_EQ(lines, 5);
  EXPECT_EQ(limit.Count("3"), 0) << "known, as it was there in time";
  clock.Advance(seconds(5));
  EXPECT_EQ(limit.Count("999"), 1) << "there is room again";
  EXPECT_EQ(limit.Count("999"), 0);
}

TEST(LogLimitTest, SaysWhatWasLeftOut) {
  EXPECT_EQ(AndMore(1), "");
  EXPECT_EQ(AndMore(4), " [and 3 more like it]");
}

}  // namespace
}  // namespace torpor::log
