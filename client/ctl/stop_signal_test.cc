#include "client/ctl/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <future>

namespace torpor::ctl {
namespace {

bool Pending(int signal) {
  sigset_t pending;
  ::sigpending(&pending);
  return ::sigismember(&pending, signal) == 1;
}

class StopSignalTest : public testing::Test {
 protected:
  StopSignalTest() { BlockStopSignals(); }
};

TEST_F(StopSignalTest, ASignalStops) {
  for (const int which : {SIGINT, SIGTERM}) {
    std::promise<void> stopped;
    const StopOnSignal signal([&] { stopped.set_value(); });
    EXPECT_FALSE(signal.stopped());
    ::kill(::getpid(), which);
    stopped.get_future().wait();
    EXPECT_TRUE(signal.stopped());
  }
}

TEST_F(StopSignalTest, ASignalFromBeforeStops) {
  ::kill(::getpid(), SIGINT);
  std::promise<void> stopped;
  const StopOnSignal signal([&] { stopped.set_value(); });
  stopped.get_future().wait();
  EXPECT_FALSE(Pending(SIGINT));
}

TEST_F(StopSignalTest, ItsEndStopsNothing) {
  for (int i = 0; i < 1000; ++i) {
    const StopOnSignal signal([] { ADD_FAILURE() << "stopped without a signal"; });
  }
  EXPECT_FALSE(Pending(SIGTERM));
}

TEST_F(StopSignalTest, OneThatComesAfterItsEndWaitsForTheNext) {
  {
    const StopOnSignal signal([] { ADD_FAILURE() << "stopped without a signal"; });
  }
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(Pending(SIGTERM));
  std::promise<void> stopped;
  const StopOnSignal signal([&] { stopped.set_value(); });
  stopped.get_future().wait();
}

TEST_F(StopSignalTest, ItEndsWhileASignalStops) {
  std::promise<void> stopping;
  {
    const StopOnSignal signal([&] { stopping.set_value(); });
    ::kill(::getpid(), SIGINT);
    stopping.get_future().wait();
    ::kill(::getpid(), SIGINT);
  }
  EXPECT_TRUE(Pending(SIGINT));
  std::promise<void> stopped;
  const StopOnSignal signal([&] { stopped.set_value(); });
  stopped.get_future().wait();
}

}  // namespace
}  // namespace torpor::ctl
