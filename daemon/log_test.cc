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

TEST(LogTest, ControlCharactersAreEscaped) {
  EXPECT_THAT(Logged([] {
                log::Info("{} sleeps",
                          "a\nb\r\tc\x1b[31m\x7f\xc2\x9b" + std::string(1, '\0') + "\xc3\xa9");
              }),
              testing::EndsWith(" info a\\nb\\r\\tc\\x1b[31m\\x7f\\u009b\\x00\xc3\xa9 sleeps\n"));
}

TEST(LogTest, ALongLineIsCut) {
  const std::string longest(4096, 'x');
  EXPECT_THAT(Logged([&] { log::Write(log::Level::kInfo, longest); }),
              testing::EndsWith(" info " + longest + "\n"));
  EXPECT_THAT(Logged([&] { log::Write(log::Level::kInfo, longest + "yz"); }),
              testing::EndsWith(" info " + longest + " [cut: 2 more bytes]\n"));
  // Escapes count, and no character is cut in the middle.
  EXPECT_THAT(Logged([] { log::Write(log::Level::kInfo, std::string(3000, '\n')); }),
              testing::HasSubstr("\\n [cut: 952 more bytes]\n"));
  EXPECT_THAT(Logged([&] { log::Write(log::Level::kInfo, longest.substr(1) + "\xc3\xa9"); }),
              testing::EndsWith("x [cut: 2 more bytes]\n"));
}

TEST(LogTest, ParsesLevels) {
  EXPECT_EQ(*log::ParseLevel("error"), log::Level::kError);
  EXPECT_THAT(log::ParseLevel("loud"), HasReason("BAD_LOG_LEVEL"));
}

}  // namespace
}  // namespace torpor
