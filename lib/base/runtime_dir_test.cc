#include "lib/base/runtime_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "lib/base/status_matchers.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

TEST(RuntimeDirTest, ComesFromTheEnvironment) {
  ::setenv("TORPOR_RUNTIME_DIR", "/some/where", 1);
  EXPECT_EQ(*DefaultRuntimeDir(), "/some/where");
  ::unsetenv("TORPOR_RUNTIME_DIR");
  ::setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
  EXPECT_EQ(*DefaultRuntimeDir(), ::geteuid() == 0 ? "/run/torpor" : "/run/user/1/torpor");
  if (::geteuid() == 0) return;
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_THAT(DefaultRuntimeDir(), HasReason("NO_RUNTIME_DIR"));
}

TEST(RuntimeDirTest, FoldersAreMadeWhateverTheUmask) {
  const TempDir dir;
  const mode_t umask_before = ::umask(0077);
  const std::string file = dir.path() + "/one/two//file";
  EXPECT_THAT(MakeFoldersOf(file), IsOk());
  ASSERT_EQ(::chmod((dir.path() + "/one").c_str(), 0700), 0);
  EXPECT_THAT(MakeFoldersOf(file), IsOk());
  ::umask(umask_before);
  struct stat about {};
  ASSERT_EQ(::stat((dir.path() + "/one/two").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0755u);
  ASSERT_EQ(::stat((dir.path() + "/one").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0700u);
  EXPECT_NE(::stat(file.c_str(), &about), 0);
  EXPECT_THAT(MakeFoldersOf("file"), IsOk());
  EXPECT_THAT(MakeFoldersOf("/file"), IsOk());
  EXPECT_THAT(MakeFoldersOf("/dev/null/folder/file"), HasReason("ERRNO_ENOTDIR"));
}

}  // namespace
}  // namespace torpor
