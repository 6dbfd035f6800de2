#include "daemon/log_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"

namespace torpor::log {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// What is written on standard error, without its times.
class LogLimitTest : public testing::Test {
 protected:
  void SetUp() override { testing::internal::CaptureStderr(); }
  void TearDown() override {
    limit_.reset();
    (void)testing::internal::GetCapturedStderr();
  }
  void Make(int lines, size_t kinds) {
    limit_ = std::make_unique<Limit>(Limit::Options{seconds(5), lines, kinds}, clock_);
  }
  void Write(const std::string& kind, const std::string& line) {
    limit_->Write(Level::kWarning, kind, "{}", line);
  }
  // Since the last call.
  static std::vector<std::string> Written() {
    const std::string all = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    std::vector<std::string> lines;
    for (size_t begin = 0, end = 0; (end = all.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      const std::string line = all.substr(begin, end - begin);
      lines.push_back(line.substr(line.find(' ') + 1));
    }
    return lines;
  }
  std::vector<std::string> Tick() {
    Limit::TellAll(false);
    return Written();
  }

  ManualClock clock_;
  std::unique_ptr<Limit> limit_;
};

TEST_F(LogLimitTest, CountsWhatItLeavesOut) {
  Make(1, 64);
  for (int i = 0; i < 8; ++i) Write("a", "a" + std::to_string(i));
  Write("b", "b0");
  EXPECT_THAT(Written(), ElementsAre("warning a0", "warning b0"));
  clock_.Advance(seconds(4));
  Write("a", "a8");
  EXPECT_THAT(Written(), IsEmpty());
  clock_.Advance(seconds(1));
  Write("a", "a9");
  Write("a", "a10");
  EXPECT_THAT(Written(), ElementsAre("warning a9 [and 8 more like it]"));
}

TEST_F(LogLimitTest, TellsTheLastOfThoseLeftOutWhenTheIntervalIsOver) {
  Make(1, 64);
  for (int i = 0; i < 400; ++i) Write("a", "a" + std::to_string(i));
  for (int i = 0; i < 2; ++i) Write("b", "b" + std::to_string(i));
  Write("c", "c0");
  EXPECT_THAT(Written(), SizeIs(3));
  clock_.Advance(seconds(4));
  EXPECT_THAT(Tick(), IsEmpty());
  clock_.Advance(seconds(1));
  EXPECT_THAT(Tick(), ElementsAre("warning a399 [and 398 more like it]", "warning b1"));
  EXPECT_THAT(Tick(), IsEmpty());
  // That was the one line of this interval.
  Write("a", "a400");
  EXPECT_THAT(Tick(), IsEmpty());
  clock_.Advance(seconds(5));
  EXPECT_THAT(Tick(), ElementsAre("warning a400"));
  clock_.Advance(seconds(5));
  EXPECT_THAT(Tick(), IsEmpty());
  Write("a", "a401");
  EXPECT_THAT(Written(), ElementsAre("warning a401"));
}

TEST_F(LogLimitTest, TellsTheRestAtItsEnd) {
  Make(1, 64);
  for (int i = 0; i < 3; ++i) Write("a", "a" + std::to_string(i));
  limit_.reset();
  EXPECT_THAT(Written(), ElementsAre("warning a0", "warning a2 [and 1 more like it]"));
  Make(1, 64);
  for (int i = 0; i < 3; ++i) Write("a", "a" + std::to_string(i));
  Limit::TellAll(true);
  EXPECT_THAT(Written(), ElementsAre("warning a0", "warning a2 [and 1 more like it]"));
  limit_.reset();
  EXPECT_THAT(Written(), IsEmpty());
}

TEST_F(LogLimitTest, LetsAFewThrough) {
  Make(3, 64);
  for (int i = 0; i < 4; ++i) Write("a", "a" + std::to_string(i));
  EXPECT_THAT(Written(), ElementsAre("warning a0", "warning a1", "warning a2"));
  clock_.Advance(seconds(5));
  for (int i = 4; i < 8; ++i) Write("a", "a" + std::to_string(i));
  EXPECT_THAT(Written(),
              ElementsAre("warning a4 [and 1 more like it]", "warning a5", "warning a6"));
}

TEST_F(LogLimitTest, KindsWithoutEndCountAsOne) {
  Make(1, 4);
  for (int i = 0; i < 1000; ++i) Write(std::to_string(i), std::to_string(i));
  EXPECT_THAT(Written(), SizeIs(5));
  Write("3", "known, as it was there in time");
  EXPECT_THAT(Written(), IsEmpty());
  clock_.Advance(seconds(5));
  // There is room again, and nothing is lost with what is forgotten.
  Write("999", "again");
  EXPECT_THAT(Written(), ElementsAre("warning 999 [and 994 more like it]",
                                     "warning known, as it was there in time", "warning again"));
  Write("999", "again");
  EXPECT_THAT(Written(), IsEmpty());
}

TEST_F(LogLimitTest, ALongLineIsCutBeforeTheNumber) {
  Make(1, 64);
  for (int i = 0; i < 3; ++i) Write("a", std::string(1'000'000, 'x') + "\n");
  clock_.Advance(seconds(5));
  const std::vector<std::string> lines = Tick();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_LT(lines[1].size(), 4200U);
  EXPECT_THAT(lines[1], HasSubstr(" [cut: 995905 more bytes] [and 1 more like it]"));
}

TEST_F(LogLimitTest, NothingIsLostAmongManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kLines = 5000;
  RestTeller teller;
  ASSERT_THAT(teller.Start(), IsOk());
  Limit limit({milliseconds(1), 2, 4});
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&limit, t] {
      // Now and then one that there is only for a while.
      Limit passing({milliseconds(1), 1, 1});
      for (int i = 0; i < kLines; ++i) {
        limit.Write(Level::kWarning, std::to_string((t + i) % 6), "line");
        if (i % 1000 == 0) passing.Write(Level::kDebug, "k", "not of this level");
        if (i % 1000 == 0) Limit::TellAll(false);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Limit::TellAll(true);
  int64_t told = 0;
  for (const std::string& line : Written()) {
    const size_t more = line.find("[and ");
    told += 1 + (more == std::string::npos ? 0 : std::stoll(line.substr(more + 5)));
  }
  EXPECT_EQ(told, int64_t{kThreads} * kLines);
}

TEST_F(LogLimitTest, TheTellerTellsByItself) {
  Limit limit({milliseconds(10), 1, 64});
  RestTeller teller;
  ASSERT_THAT(teller.Start(), IsOk());
  for (int i = 0; i < 3; ++i) limit.Write(Level::kWarning, "a", "a{}", i);
  const TimePoint until = Clock::Real().Now() + seconds(60);
  std::string all;
  while (all.find("a2") == std::string::npos && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
    for (const std::string& line : Written()) all += line + "\n";
  }
  EXPECT_THAT(all, HasSubstr("a2"));
}

}  // namespace
}  // namespace torpor::log
