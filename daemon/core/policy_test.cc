#include "daemon/core/policy.h"

#include <gtest/gtest.h>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

using wire::Policy;

TEST(LevelPolicyTest, DropsOnlyWhatTheTableNames) {
  struct Row {
    const char* tag;
    Policy level1;
    Policy level2;
  };
  const Row table[] = {
      {"weights", Policy::kOffload, Policy::kDiscard},
      {"kv_cache", Policy::kDiscard, Policy::kDiscard},
      {"workspace", Policy::kDiscard, Policy::kDiscard},
      {"runtime", Policy::kOffload, Policy::kOffload},
      {"cudagraph", Policy::kOffload, Policy::kOffload},
      {"default", Policy::kOffload, Policy::kOffload},
      {"Weights", Policy::kOffload, Policy::kOffload},
      {"weights2", Policy::kOffload, Policy::kOffload},
  };
  for (const Row& row : table) {
    EXPECT_EQ(LevelPolicy(1)(row.tag), row.level1) << row.tag;
    EXPECT_EQ(LevelPolicy(2)(row.tag), row.level2) << row.tag;
  }
}

TEST(LevelPolicyTest, KnowsTwoLevels) {
  for (const int32_t level : {-1, 0, 3, 1 << 30}) EXPECT_EQ(LevelPolicy(level), nullptr);
}

TEST(PolicyFromTest, TakesALevel) {
  const auto policy = PolicyFrom(1, {});
  ASSERT_THAT(policy, IsOk());
  EXPECT_EQ((*policy)("kv_cache"), Policy::kDiscard);
}

TEST(PolicyFromTest, KeepsATagThatNoPolicyNames) {
  const auto policy =
      PolicyFrom(0, {{"a", Policy::kOffload}, {"b", Policy::kDiscard}, {"c", Policy::kKeep}});
  ASSERT_THAT(policy, IsOk());
  EXPECT_EQ((*policy)("a"), Policy::kOffload);
  EXPECT_EQ((*policy)("b"), Policy::kDiscard);
  EXPECT_EQ((*policy)("c"), Policy::kKeep);
  EXPECT_EQ((*policy)("kv_cache"), Policy::kKeep);
}

TEST(PolicyFromTest, RefusesEachMistakeWithItsReason) {
  EXPECT_THAT(PolicyFrom(1, {{"a", Policy::kKeep}}), HasReason("LEVEL_AND_POLICIES"));
  EXPECT_THAT(PolicyFrom(0, {}), HasReason("POLICY_MISSING"));
  EXPECT_THAT(PolicyFrom(3, {}), HasReason("BAD_LEVEL"));
  EXPECT_THAT(PolicyFrom(-1, {}), HasReason("BAD_LEVEL"));
  EXPECT_THAT(PolicyFrom(0, {{"no tag", Policy::kKeep}}), HasReason("BAD_TAG"));
  EXPECT_THAT(PolicyFrom(0, {{"a", static_cast<Policy>(3)}}), HasReason("BAD_POLICY"));
  EXPECT_THAT(PolicyFrom(3, {}), HasCode(Code::kInvalidArgument));
  EXPECT_EQ(PolicyFrom(3, {}).status().Number("level"), 3);
}

TEST(FilterOfTest, NoTagMeansEveryTag) {
  EXPECT_TRUE(FilterOf({})("anything"));
  const auto filter = FilterOf({"a", "b"});
  EXPECT_TRUE(filter("a"));
  EXPECT_TRUE(filter("b"));
  EXPECT_FALSE(filter("c"));
}

}  // namespace
}  // namespace torpor
