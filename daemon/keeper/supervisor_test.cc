#include "daemon/keeper/supervisor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "lib/base/status_matchers.h"

namespace torpor::keeper {
namespace {

bool Ended(const Supervisor& supervisor) {
  pollfd ended{supervisor.pidfd(), POLLIN, 0};
  return ::poll(&ended, 1, 60000) == 1;
}

TEST(SupervisorTest, TellsHowTheDaemonEnded) {
  Supervisor supervisor({"/bin/sh", "-c", "exit 3"});
  EXPECT_FALSE(supervisor.running());
  ASSERT_THAT(supervisor.Start(), IsOk());
  ASSERT_TRUE(Ended(supervisor));
  const Supervisor::End end = supervisor.Collect();
  ASSERT_TRUE(end.status.has_value());
  EXPECT_EQ(WEXITSTATUS(*end.status), 3);
  EXPECT_FALSE(supervisor.running());
}

TEST(SupervisorTest, ADaemonThatDoesNotLiveIsStartedLaterAndLater) {
  Supervisor supervisor({"/nonexistent/torpord"});
  Duration last{};
  for (int i = 0; i < 8; ++i) {
    ASSERT_THAT(supervisor.Start(), IsOk());
    ASSERT_TRUE(Ended(supervisor));
    const Supervisor::End end = supervisor.Collect();
    EXPECT_EQ(WEXITSTATUS(*end.status), 127);
    EXPECT_GT(end.pause, Duration());
    EXPECT_GE(end.pause, last);
    last = end.pause;
  }
  EXPECT_EQ(last, seconds(2));
}

TEST(SupervisorTest, ADaemonThatLivedIsStartedAgainAtOnce) {
  Supervisor supervisor({"/bin/sleep", "1.1"});
  for (const bool attached : {false, true, false}) {
    ASSERT_THAT(supervisor.Start(), IsOk());
    if (attached) supervisor.NoteAttached();
    ASSERT_TRUE(Ended(supervisor));
    EXPECT_EQ(supervisor.Collect().pause == Duration(), attached);
  }
}

TEST(SupervisorTest, PassesSignalsOn) {
  Supervisor supervisor({"/bin/sleep", "1000"});
  supervisor.Signal(SIGTERM);
  ASSERT_THAT(supervisor.Start(), IsOk());
  supervisor.Signal(SIGTERM);
  ASSERT_TRUE(Ended(supervisor));
  EXPECT_EQ(WTERMSIG(*supervisor.Collect().status), SIGTERM);
}

TEST(SupervisorTest, AnotherOneTakesTheDaemonOver) {
  Supervisor first({"/bin/sleep", "1000"});
  ASSERT_THAT(first.Start(), IsOk());
  Supervisor second({"/bin/false"});
  EXPECT_FALSE(second.TakeOver({first.daemon().pid, first.daemon().started + 1}));
  EXPECT_FALSE(second.running());
  ASSERT_TRUE(second.TakeOver(first.daemon()));
  second.Signal(SIGKILL);
  ASSERT_TRUE(Ended(second));
  EXPECT_FALSE(second.Collect().status.has_value());
  EXPECT_EQ(WTERMSIG(*first.Collect().status), SIGKILL);
  EXPECT_FALSE(second.TakeOver(first.daemon()));
}

TEST(ProcessIdTest, IsNobodyElses) {
  const Result<ProcessId> self = FindProcess(::getpid());
  ASSERT_THAT(self, IsOk());
  EXPECT_GT(self->started, 0u);
  EXPECT_THAT(FindProcess(0x7ffffffe), HasReason("UNKNOWN_PROCESS"));
}

TEST(ProcessIdTest, DescendsFromWhoeverHasStartedIt) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // Its own child tells its number, and both wait for the end of this test.
  Supervisor supervisor(
      {"/bin/sh", "-c", "sleep 1000 & echo $! >&" + std::to_string(ends[1]) + "; wait"});
  ASSERT_THAT(supervisor.Start(), IsOk());
  ::close(ends[1]);
  std::string text(20, '\0');
  ASSERT_GT(::read(ends[0], text.data(), text.size()), 0);
  ::close(ends[0]);
  const pid_t grandchild = std::stoi(text);
  const pid_t child = supervisor.daemon().pid;
  EXPECT_TRUE(Descends(child, child));
  EXPECT_TRUE(Descends(grandchild, child));
  EXPECT_TRUE(Descends(grandchild, ::getpid()));
  EXPECT_FALSE(Descends(child, grandchild));
  EXPECT_FALSE(Descends(::getpid(), child));
  EXPECT_FALSE(Descends(0, child));
  EXPECT_FALSE(Descends(0x7ffffffe, child));
  ::kill(grandchild, SIGKILL);
  supervisor.Signal(SIGKILL);
  ASSERT_TRUE(Ended(supervisor));
  supervisor.Collect();
}

}  // namespace
}  // namespace torpor::keeper
