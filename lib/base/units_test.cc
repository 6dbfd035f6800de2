#include "lib/base/units.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace torpor {
namespace {

static_assert(!std::is_convertible_v<SegmentId, ExtentId>);
static_assert(!std::is_convertible_v<int, Bytes>);

TEST(BytesTest, Arithmetic) {
  EXPECT_EQ(KiB(1) + Bytes(24), Bytes(1048));
  EXPECT_EQ(Bytes(1) - Bytes(3), Bytes(-2));
  EXPECT_EQ(MiB(3) / MiB(2), 1);
  EXPECT_EQ(MiB(3) % MiB(2), MiB(1));
  EXPECT_EQ(RoundUp(Bytes(0), MiB(2)), Bytes(0));
  EXPECT_EQ(RoundUp(Bytes(1), MiB(2)), MiB(2));
  EXPECT_EQ(RoundUp(MiB(2), MiB(2)), MiB(2));
}

TEST(DeviceAddressTest, DifferenceIsSigned) {
  const DeviceAddress address(0x7f0000000000);
  EXPECT_EQ((address + MiB(2)) - address, MiB(2));
  EXPECT_EQ(address - (address + MiB(2)), MiB(-2));
}

TEST(StrongTest, IsAKey) {
  const std::unordered_set<SegmentId> ids{SegmentId(1), SegmentId(2), SegmentId(1)};
  EXPECT_EQ(ids.size(), 2u);
}

TEST(ParseBytesTest, TakesUnits) {
  const struct {
    const char* text;
    Bytes bytes;
  } cases[] = {
      {"0", Bytes(0)},
      {"4096", Bytes(4096)},
      {"4096B", Bytes(4096)},
      {"64GiB", GiB(64)},
      {"512 MiB", MiB(512)},
      {"1.5GiB", MiB(1536)},
      {"2 TiB", GiB(2048)},
      {"1kB", Bytes(1000)},
      {"3MB", Bytes(3000000)},
      {"3GB", Bytes(3000000000)},
      {"1TB", Bytes(1000000000000)},
      {".5KiB", Bytes(512)},
      // Would not survive a double.
      {"4611686018427387903", Bytes(4611686018427387903)},
      {"4503599627370497 B", Bytes(4503599627370497)},
  };
  for (const auto& [text, bytes] : cases) {
    const Result<Bytes> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytesTest, RefusesTheRest) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1",
                           "-1GiB",
                           "+1",
                           "1..5GiB",
                           "1.2.3",
                           ".",
                           "1e9",
                           "0x10",
                           "inf",
                           "nan",
                           "1 gib",
                           "1Gib",
                           "1 G",
                           "1GiBs",
                           "1GiB ",
                           "1,5GiB",
                           "1 GiB 2",
                           "4611686018427387904",
                           "4194304TiB",
                           "99999999999999999999999999999999999TiB"}) {
    const Result<Bytes> parsed = ParseBytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(parsed.status().reason(), "BAD_SIZE");
  }
  EXPECT_FALSE(ParseBytes(std::string(1000, '9')).ok());
  EXPECT_FALSE(ParseBytes(std::string_view("1\0GiB", 5)).ok());
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(Bytes(0)), "0 B");
  EXPECT_EQ(FormatBytes(Bytes(512)), "512 B");
  EXPECT_EQ(FormatBytes(KiB(64)), "64.00 KiB");
  EXPECT_EQ(FormatBytes(MiB(2)), "2.00 MiB");
  EXPECT_EQ(FormatBytes(MiB(28160)), "27.50 GiB");
  EXPECT_EQ(FormatBytes(GiB(16 << 10)), "16.00 TiB");
  EXPECT_EQ(FormatBytes(MiB(-2)), "-2.00 MiB");
}

TEST(CheckNameTest, TakesNames) {
  for (const std::string& name : {std::string("a"), std::string("kv_cache"), std::string("0"),
                                  std::string("llama-3.1_8B"), std::string(63, 'x')}) {
    EXPECT_TRUE(CheckName(name, "tag", "BAD_TAG").ok()) << name;
  }
}

TEST(CheckNameTest, RefusesTheRest) {
  for (const std::string& name :
       {std::string(), std::string(64, 'x'), std::string("-a"), std::string(".a"),
        std::string("_a"), std::string("a b"), std::string("a/b"), std::string("\xc3\xa4"),
        std::string("a\n"), std::string("a\0b", 3), std::string(1 << 20, 'x')}) {
    const Status status = CheckName(name, "tag", "BAD_TAG");
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.reason(), "BAD_TAG");
    EXPECT_LT(status.message().size(), 300u);
  }
}

}  // namespace
}  // namespace torpor
