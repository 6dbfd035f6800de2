#include "daemon/log.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

std::string Logged(const std::function<void()>& write) {
  testing::internal::CaptureStderr();
  write();
  return testing::internal::GetCapturedStderr();
}

TEST(LogTest, FormatsAndNamesTheLevel) {
  const std::string line =
      Logged([] { log::Warning("{} failed: {}", "w-7", NotFound("UNKNOWN_WORKER", "no w-7")); });
  EXPECT_THAT(line, testing::MatchesRegex(
                        "[0-9T:.+-]+ warning w-7 failed: NOT_FOUND UNKNOWN_WORKER: no w-7\n"));
}

TEST(LogTest, DropsWhatIsBelowTheLevel) {
  EXPECT_EQ(Logged([] { log::Debug("unseen"); }), "");
  log::SetLevel(log::Level::kDebug);
  EXPECT_THAT(Logged([] { log::Debug("seen"); }), testing::HasSubstr(" debug seen"));
  log::SetLevel(log::Level::kError);
  EXPECT_EQ(Logged([] { log::Warning("unseen"); }), "");
  log::SetLevel(log::Level::kInfo);
}

TEST(LogTest, ABraceInTheTextIsNoFormat) {
  EXPECT_THAT(Logged([] { log::Write(log::Level::kInfo, "{} {0}"); }),
              testing::HasSubstr("{} {0}"));
}

TEST(LogTest, ParsesLevels) {
  EXPECT_EQ(*log::ParseLevel("error"), log::Level::kError);
  EXPECT_THAT(log::ParseLevel("loud"), HasReason("BAD_LOG_LEVEL"));
}

}  // namespace
}  // namespace torpor
