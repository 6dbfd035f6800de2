#include "lib/base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace torpor {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesOnce) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    UniqueFd fd(raw);
    UniqueFd moved(std::move(fd));
    EXPECT_FALSE(fd.valid());  // NOLINT
    EXPECT_EQ(moved.get(), raw);
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, AssignmentClosesTheOld) {
  UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int old = first.get();
  UniqueFd second(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  first = std::move(second);
  EXPECT_FALSE(IsOpen(old));
  EXPECT_TRUE(first.valid());
}

TEST(UniqueFdTest, ReleaseGivesOwnershipAway) {
  UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int raw = fd.Release();
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(IsOpen(raw));
  ::close(raw);
}

TEST(UniqueFdTest, DuplicateIsCloseOnExec) {
  const UniqueFd fd(::open("/dev/null", O_RDONLY));
  const Result<UniqueFd> copy = fd.Duplicate();
  ASSERT_TRUE(copy.ok());
  EXPECT_NE(copy->get(), fd.get());
  EXPECT_EQ(::fcntl(copy->get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(UniqueFd().Duplicate().status().reason(), "ERRNO_EBADF");
}

}  // namespace
}  // namespace torpor
