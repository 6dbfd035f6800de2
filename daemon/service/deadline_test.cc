#include "daemon/service/deadline.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace torpor {
namespace {

constexpr Duration kNone = seconds(300);

gpr_timespec Span(int64_t milliseconds) { return gpr_time_from_millis(milliseconds, GPR_TIMESPAN); }

TEST(DeadlineTest, KeepsAMarginForTheAnswer) {
  EXPECT_EQ(OperationTime(Span(10'000), kNone), milliseconds(9'900));
  EXPECT_EQ(OperationTime(Span(500), kNone), milliseconds(400));
  EXPECT_EQ(OperationTime(Span(100), kNone), milliseconds(75));
  EXPECT_EQ(OperationTime(Span(0), kNone), Duration::zero());
}

TEST(DeadlineTest, IsRelativeToTheClockOfTheDeadline) {
  for (const gpr_clock_type clock : {GPR_CLOCK_REALTIME, GPR_CLOCK_MONOTONIC}) {
    const gpr_timespec in_a_minute = gpr_time_add(gpr_now(clock), Span(60'000));
    EXPECT_LE(OperationTime(in_a_minute, kNone), milliseconds(59'900));
    EXPECT_GT(OperationTime(in_a_minute, kNone), milliseconds(50'000));
    EXPECT_EQ(OperationTime(gpr_time_sub(gpr_now(clock), Span(1)), kNone), Duration::zero());
  }
}

TEST(DeadlineTest, WithoutADeadlineTheDefaultHolds) {
  EXPECT_EQ(OperationTime(gpr_inf_future(GPR_CLOCK_REALTIME), kNone), kNone);
  EXPECT_EQ(OperationTime(gpr_inf_future(GPR_CLOCK_MONOTONIC), kNone), kNone);
}

TEST(DeadlineTest, TakesAbsurdDeadlines) {
  const Duration year = std::chrono::hours(24 * 365);
  gpr_timespec far = gpr_now(GPR_CLOCK_REALTIME);
  far.tv_sec = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_EQ(OperationTime(far, kNone), year);
  far.tv_sec = int64_t{1} << 40;
  EXPECT_EQ(OperationTime(far, kNone), year);
  EXPECT_EQ(OperationTime(gpr_inf_past(GPR_CLOCK_REALTIME), kNone), Duration::zero());
  far.tv_sec = std::numeric_limits<int64_t>::min() + 1;
  EXPECT_EQ(OperationTime(far, kNone), Duration::zero());
}

}  // namespace
}  // namespace torpor
