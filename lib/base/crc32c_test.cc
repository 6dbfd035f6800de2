#include "lib/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace torpor {
namespace {

// The vectors of RFC 3720, B.4.
TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(Crc32c(0, "", 0), 0u);
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(0, std::string(32, '\xff').data(), 32), 0x62a8ab43u);
}

TEST(Crc32cTest, PartsGiveWhatTheWholeGives) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  const uint32_t whole = Crc32c(0, text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); cut += 13) {
    const uint32_t first = Crc32c(0, text.data(), cut);
    EXPECT_EQ(Crc32c(first, text.data() + cut, text.size() - cut), whole) << cut;
  }
}

}  // namespace
}  // namespace torpor
