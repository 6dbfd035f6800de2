#include "client/ctl/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace torpor::ctl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const KnownNames& Names() {
  static const auto& names = *new KnownNames{
      {"host-0", "host-1"}, {"w-1", "model-a", "model-b"}, {"weights", "kv_cache"}, {"r-1", "r-2"}};
  return names;
}

std::vector<std::string> Of(const std::vector<std::string>& words) {
  std::vector<std::string> all = Complete(words, Names());
  for (std::string& one : all) one = one.substr(0, one.find('\t'));
  return all;
}

TEST(CompletionTest, VerbsAndTheirArguments) {
  EXPECT_THAT(Of({""}), Contains("usage"));
  EXPECT_THAT(Of({""}), Contains("completion"));
  EXPECT_THAT(Of({"re"}), ElementsAre("reserve", "renew", "release"));
  EXPECT_THAT(Of({"--json", "us"}), ElementsAre("usage"));
  EXPECT_THAT(Of({"sleep", "m"}), ElementsAre("model-a", "model-b"));
  EXPECT_THAT(Of({"sleep", "model-a", "w"}), ElementsAre("w-1"));
  EXPECT_THAT(Of({"release", ""}), ElementsAre("r-1", "r-2"));
  EXPECT_THAT(Of({"completion", "z"}), ElementsAre("zsh"));
  EXPECT_THAT(Of({"usage", ""}), IsEmpty());
  EXPECT_THAT(Of({}), IsEmpty());
}

TEST(CompletionTest, Flags) {
  EXPECT_THAT(Of({"sleep", "--l"}), ElementsAre("--level="));
  EXPECT_THAT(Of({"usage", "--"}), Contains("--json"));
  EXPECT_THAT(Of({"usage", "--"}), Not(Contains("--level=")));
  EXPECT_THAT(Of({"--"}), Contains("--help"));
  EXPECT_THAT(Of({"--"}), Not(Contains("--level=")));
  EXPECT_THAT(Complete({"sleep", "--force"}, Names()).front(), StartsWith("--force\tsleep: "));
}

TEST(CompletionTest, Values) {
  EXPECT_THAT(Of({"sleep", "--level="}), ElementsAre("--level=1", "--level=2"));
  EXPECT_THAT(Of({"sleep", "--level", ""}), ElementsAre("1", "2"));
  EXPECT_THAT(Of({"--device=host-0,h"}),
              ElementsAre("--device=host-0,host-0", "--device=host-0,host-1"));
  EXPECT_THAT(Of({"wake", "--tag", "weights,k"}), ElementsAre("weights,kv_cache"));
  EXPECT_THAT(Of({"sleep", "--policy=we"}), ElementsAre("--policy=weights="));
  EXPECT_THAT(Of({"sleep", "--policy=weights=d"}), ElementsAre("--policy=weights=discard"));
  EXPECT_THAT(Of({"sleep", "--policy", "weights=keep,kv_cache=o"}),
              ElementsAre("weights=keep,kv_cache=offload"));
  EXPECT_THAT(Of({"watch", "--kind=session,pre"}), ElementsAre("--kind=session,pressure"));
  EXPECT_THAT(Of({"wake", "--reservation", "r-2"}), ElementsAre("r-2"));
  EXPECT_THAT(Of({"health", "--service=torpor.k"}), ElementsAre("--service=torpor.keeper"));
  // A value is no verb, and a verb no value.
  EXPECT_THAT(Of({"--device", "sleep", "wa"}), ElementsAre("wake", "watch"));
  EXPECT_THAT(Of({"usage", "--no-such-flag="}), IsEmpty());
}

TEST(CompletionTest, NobodyIsThere) {
  EXPECT_THAT(AskForNames({"sleep", "--runtime-dir=/nowhere", ""}).workers, IsEmpty());
  EXPECT_THAT(AskForNames({"sleep", "--timeout=nonsense", "--target"}).devices, testing::_);
}

}  // namespace
}  // namespace torpor::ctl
