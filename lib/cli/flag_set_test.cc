#include "lib/cli/flag_set.h"

#include <gtest/gtest.h>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DurationTest, Parses) {
  EXPECT_EQ(*ParseDuration("5s"), seconds(5));
  EXPECT_EQ(*ParseDuration("300ms"), milliseconds(300));
  EXPECT_EQ(*ParseDuration("1.5m"), seconds(90));
  EXPECT_EQ(*ParseDuration("2h"), std::chrono::hours(2));
  EXPECT_EQ(*ParseDuration("30d"), std::chrono::hours(720));
  EXPECT_EQ(*ParseDuration("365d"), std::chrono::hours(8760));
  EXPECT_EQ(*ParseDuration("7us"), std::chrono::microseconds(7));
  EXPECT_EQ(*ParseDuration("0s"), Duration::zero());
}

TEST(DurationTest, RefusesWhatIsNone) {
  for (const char* text :
       {"", "5", "s", "-5s", "5 s", "5x", "1.2.3s", "nan", "infs", "1e9h", "5s5"}) {
    EXPECT_THAT(ParseDuration(text), HasReason("BAD_DURATION")) << text;
  }
  EXPECT_THAT(ParseDuration("9000h"), HasReason("BAD_DURATION"));
  EXPECT_THAT(ParseDuration("366d"), HasReason("BAD_DURATION"));
  EXPECT_THAT(ParseDuration(std::string(400, '9') + "s"), HasReason("BAD_DURATION"));
}

TEST(DurationTest, Formats) {
  EXPECT_EQ(FormatDuration(std::chrono::microseconds(412)), "412us");
  EXPECT_EQ(FormatDuration(std::chrono::microseconds(41200)), "41.2ms");
  EXPECT_EQ(FormatDuration(milliseconds(999)), "999ms");
  EXPECT_EQ(FormatDuration(milliseconds(4120)), "4.12s");
  EXPECT_EQ(FormatDuration(seconds(41)), "41.0s");
  EXPECT_EQ(FormatDuration(seconds(200)), "3m20s");
  EXPECT_EQ(FormatDuration(std::chrono::hours(3)), "3h");
  EXPECT_EQ(FormatDuration(std::chrono::hours(49)), "2d1h");
  EXPECT_EQ(FormatDuration(Duration::zero()), "0us");
  EXPECT_EQ(FormatDuration(-seconds(2)), "-2.00s");
}

class FlagSetTest : public testing::Test {
 protected:
  FlagSetTest() {
    flags_.AddString("name", "NAME", "a name", &name_);
    flags_.AddSwitch("loud", "a switch", &loud_);
    flags_.AddBytes("size", "a size", &size_);
    flags_.AddDuration("time", "a duration", &time_);
    flags_.Add("item", "ITEM", "may be repeated", [this](std::string_view value) {
      items_.emplace_back(value);
      return Status::Ok();
    });
  }
  FlagSet flags_;
  std::string name_;
  bool loud_ = false;
  Bytes size_{};
  Duration time_{};
  std::vector<std::string> items_;
};

TEST_F(FlagSetTest, TakesBothSpellingsAndKeepsTheRest) {
  const auto rest = flags_.Parse(
      {"a", "--name=x=y", "--loud", "b", "--size", "2GiB", "--time=3s", "--item=1", "--item", "2"});
  ASSERT_THAT(rest, IsOk());
  EXPECT_THAT(*rest, ElementsAre("a", "b"));
  EXPECT_EQ(name_, "x=y");
  EXPECT_TRUE(loud_);
  EXPECT_EQ(size_, GiB(2));
  EXPECT_EQ(time_, seconds(3));
  EXPECT_THAT(items_, ElementsAre("1", "2"));
}

TEST_F(FlagSetTest, TwoDashesEndTheFlags) {
  const auto rest = flags_.Parse({"--loud=false", "--", "--name", "-"});
  ASSERT_THAT(rest, IsOk());
  EXPECT_THAT(*rest, ElementsAre("--name", "-"));
  EXPECT_FALSE(loud_);
}

TEST_F(FlagSetTest, DashAndUnderscoreAreTheSame) {
  bool dry_run = false;
  flags_.AddSwitch("dry_run", "a switch", &dry_run);
  ASSERT_THAT(flags_.Parse({"--dry-run"}), IsOk());
  EXPECT_TRUE(dry_run);
  EXPECT_THAT(flags_.Parse({"--dry+run"}), HasReason("BAD_FLAG"));
}

TEST_F(FlagSetTest, RefusalsNameTheFlag) {
  struct Case {
    std::string argument;
    const char* reason;
    const char* message;
  };
  const Case cases[] = {
      {"--nam=x", "BAD_FLAG", "there is no flag --nam"},
      {"-n", "BAD_FLAG", "there is no flag -n"},
      {"--=x", "BAD_FLAG", "there is no flag --"},
      {"--name", "BAD_FLAG", "--name wants a value: NAME"},
      {"--loud=perhaps", "BAD_FLAG", "--loud: \"perhaps\" is neither true nor false"},
      {"--size=-1", "BAD_SIZE", "--size: "},
      {"--time=0s", "BAD_FLAG", "--time: wants more"},
      {"--time=soon", "BAD_DURATION", "--time: \"soon\" is no duration"},
  };
  for (const Case& wrong : cases) {
    const auto parsed = flags_.Parse({wrong.argument});
    ASSERT_THAT(parsed, HasReason(wrong.reason)) << wrong.argument;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(wrong.message));
  }
}

TEST_F(FlagSetTest, HelpNamesEveryFlag) {
  EXPECT_EQ(flags_.Help(),
            "  --name=NAME                 a name\n"
            "  --loud                      a switch\n"
            "  --size=SIZE                 a size\n"
            "  --time=TIME                 a duration\n"
            "  --item=ITEM                 may be repeated\n");
}

}  // namespace
}  // namespace torpor
