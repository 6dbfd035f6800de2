#include "client/ctl/text_width.h"

#include <gtest/gtest.h>

namespace torpor::ctl {
namespace {

TEST(TextWidthTest, CountsColumns) {
  EXPECT_EQ(TextWidth(""), 0u);
  EXPECT_EQ(TextWidth("model"), 5u);
  EXPECT_EQ(TextWidth("größe"), 5u);
  EXPECT_EQ(TextWidth("模型"), 4u);
  EXPECT_EQ(TextWidth("e\xcc\x81"), 1u);         // a combining accent
  EXPECT_EQ(TextWidth("\xf0\x9f\x98\x80"), 2u);  // an emoji
  EXPECT_EQ(TextWidth("a\xff\x1b[31m\xe6\xa8"), 9u);
}

TEST(TextWidthTest, ShowsNothingThatMovesTheCursor) {
  EXPECT_EQ(Printable("a\n\x1b[31m\x7f"), "a??[31m?");
  EXPECT_EQ(Printable("\xe6\xa8x"), "??x");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "x"),
            "??x");                             // C1's CSI
  EXPECT_EQ(Printable("\xed\xa0\x80"), "???");  // a surrogate
  EXPECT_EQ(Printable("\xc0\xaf"), "??");       // not the shortest form
  EXPECT_EQ(Printable("größe 模型"), "größe 模型");
}

TEST(TextWidthTest, Fits) {
  EXPECT_EQ(FitText("ab", 4), "ab  ");
  EXPECT_EQ(FitText("abcd", 4), "abcd");
  EXPECT_EQ(FitText("abcde", 4), "abc~");
  EXPECT_EQ(FitText("abc", 0), "");
  EXPECT_EQ(FitText("模型模型", 5), "模型~");
  EXPECT_EQ(FitText("模型模型", 4), "模 ~");
  EXPECT_EQ(TextWidth(FitText("e\xcc\x81tude", 3)), 3u);
}

}  // namespace
}  // namespace torpor::ctl
