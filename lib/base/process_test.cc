#include "lib/base/process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

TEST(Process, IsFoundUntilItHasEnded) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto found = FindProcess(child);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->pid, child);
  EXPECT_FALSE(HasEnded(*found));
  EXPECT_TRUE(Descends(child, ::getpid()));
  EXPECT_FALSE(Descends(::getpid(), child));
  ProcessId other = *found;
  ++other.started;
  EXPECT_TRUE(HasEnded(other)) << "the number is another process' by now";

  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(HasEnded(*found)) << "nobody has waited for it";
  EXPECT_THAT(FindProcess(child), IsOk());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(HasEnded(*found));
  EXPECT_THAT(FindProcess(child), HasReason("UNKNOWN_PROCESS"));
}

TEST(Process, WhatIsUnknownHasNotEnded) {
  EXPECT_FALSE(HasEnded(ProcessId()));
  EXPECT_FALSE(HasEnded({1, 0}));
  EXPECT_GT(PidNamespace(), 0u);
}

// What it says of a number is of another process.
TEST(Process, TheProcOfAnotherNamespaceDoesNotTell) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(77);
    const pid_t first = ::fork();
    if (first == 0) ::_exit(PidNamespace() == 0 && !HasEnded({::getpid(), 1}) ? 0 : 1);
    int status = 0;
    ::waitpid(first, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no namespace can be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace torpor
