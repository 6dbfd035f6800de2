#include "lib/base/runtime_dir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "lib/base/status_matchers.h"

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

}  // namespace
}  // namespace torpor
