#include "lib/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace torpor {
namespace {

TEST(Utf8SequenceLengthTest, TakesWhatIsWellFormed) {
  EXPECT_EQ(Utf8SequenceLength("ab"), 1u);
  EXPECT_EQ(Utf8SequenceLength("\xc3\xa4 ..."), 2u);
  EXPECT_EQ(Utf8SequenceLength("\xe2\x82\xac"), 3u);
  EXPECT_EQ(Utf8SequenceLength("\xf4\x8f\xbf\xbf"), 4u);
}

TEST(Utf8SequenceLengthTest, RefusesEverythingElse) {
  for (const char* text : {"\x80", "\xc3", "\xc3(", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(Utf8SequenceLength(text), 0u) << testing::PrintToString(text);
    EXPECT_FALSE(IsPrintableUtf8(std::string("a") + text));
  }
}

TEST(IsPrintableUtf8Test, TakesTextOfOneLine) {
  for (const char* text : {"", "POST http://[::1]:8000/sleep?level=1 ~", "\xc2\xa0\xc3\xa4",
                           "\xe2\x80\xa7\xe2\x82\xac", "\xf0\x9f\x92\xa4"}) {
    EXPECT_TRUE(IsPrintableUtf8(text)) << text;
  }
}

TEST(IsPrintableUtf8Test, RefusesWhatATerminalObeys) {
  for (const char* text :
       {"\x01", "\t", "a\nb", "\x1b[2J", "\x7f", "\xc2\x80", "\xc2\x9b", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x80\x8f", "\xd8\x9c"}) {
    EXPECT_FALSE(IsPrintableUtf8(text)) << testing::PrintToString(text);
  }
  EXPECT_FALSE(IsPrintableUtf8(std::string(1, '\0')));
}

TEST(Utf8Test, ShortensBetweenCharacters) {
  const std::string longest(64, 'x');
  EXPECT_EQ(Shorten(""), "");
  EXPECT_EQ(Shorten(longest), longest);
  EXPECT_EQ(Shorten(longest + "y"), longest + "...");
  EXPECT_EQ(Shorten("ab\xc3\xa9z", 3), "ab...");
  EXPECT_EQ(Shorten("ab\xc3\xa9z", 4), "ab\xc3\xa9...");
  EXPECT_EQ(Shorten("\xf0\x9f\x98\xb4z", 3), "...");
  // What is no UTF-8 is cut as well.
  EXPECT_EQ(Shorten(std::string(1000, '\x80')).size(), 64U);
}

}  // namespace
}  // namespace torpor
