#include "lib/base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"

namespace torpor {
namespace {

class Descriptors : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void Limit(int64_t limit) {
    const rlimit lower{static_cast<rlim_t>(limit), before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  rlimit before_{};
};

TEST_F(Descriptors, AreCounted) {
  const DescriptorCount before = CountDescriptors();
  EXPECT_GE(before.open, 3);
  EXPECT_GT(before.limit, before.open);
  const UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(CountDescriptors().open, before.open + 1);
  EXPECT_EQ(CountDescriptors().left(), before.left() - 1);
}

TEST_F(Descriptors, ThatAreKeptAreNotGivenAndComeBack) {
  Limit(200);
  DescriptorGuard guard(40);
  std::vector<UniqueFd> open;
  Status status;
  while (open.size() < 300 && (status = guard.Check()).ok()) {
    // Two for each, as the guard allows for.
    for (int i = 0; i < 2; ++i) {
      open.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      ASSERT_TRUE(open.back().valid());
    }
  }
  EXPECT_THAT(status, HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_GE(CountDescriptors().left(), 38);
  EXPECT_LT(CountDescriptors().left(), 40);
  open.resize(open.size() - 10);
  EXPECT_THAT(guard.Check(), IsOk());
}

TEST_F(Descriptors, AreCountedAgainUnderAnotherLimit) {
  DescriptorGuard guard(40);
  EXPECT_THAT(guard.Check(), IsOk());
  Limit(CountDescriptors().open + 39);
  EXPECT_THAT(guard.Check(), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
}

}  // namespace
}  // namespace torpor
