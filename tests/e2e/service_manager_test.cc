// What torpor-keeper tells the service manager that has started it, through a real NOTIFY_SOCKET.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "tests/harness/child_process.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

using ::testing::HasSubstr;

// A service manager's end. The name begins with "/" or "@".
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& name)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  }

  // The next message; empty if none comes within `patience`.
  std::string Next(Duration patience = kPatience) {
    pollfd polled{socket_.get(), POLLIN, 0};
    const auto wait = std::chrono::duration_cast<milliseconds>(patience).count();
    if (::poll(&polled, 1, static_cast<int>(wait)) != 1) return "";
    char text[512];
    const ssize_t length = ::recv(socket_.get(), text, sizeof text, 0);
    return {text, static_cast<size_t>(std::max<ssize_t>(0, length))};
  }

  // Whether it comes, after whatever else.
  bool Hears(const std::string& beginning) {
    for (std::string message = Next(); !message.empty(); message = Next()) {
      if (message.rfind(beginning, 0) == 0) return true;
    }
    return false;
  }

 private:
  UniqueFd socket_;
};

class ServiceManagerTest : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) std::fputs(keeper_.log().c_str(), stderr);
  }

  int StatusOfStopped() {
    const Result<int> status = keeper_.Stop();
    EXPECT_THAT(status, IsOk());
    return status.ok() ? *status : -1;
  }

  TempDir dir_;
  KeeperProcess keeper_{dir_.path(), {"--host_device_memory=64MiB", "--host_pool=16MiB"}};
};

TEST_F(ServiceManagerTest, hears_when_a_daemon_is_there_and_when_it_stops) {
  const std::string name = dir_.path() + "/notify";
  NotifySocket manager(name);
  ASSERT_THAT(keeper_.Start({{"NOTIFY_SOCKET", name}}), IsOk());
  EXPECT_THAT(manager.Next(), HasSubstr("STATUS=daemon "));
  EXPECT_EQ(manager.Next(), "READY=1");
  EXPECT_THAT(manager.Next(), HasSubstr("STATUS=has daemon "));

  const auto before = keeper_.daemon();
  ASSERT_THAT(before, IsOk());
  keeper_.KillDaemon();
  const auto after = keeper_.AwaitDaemon(*before);
  ASSERT_THAT(after, IsOk());
  EXPECT_EQ(manager.Next(), "STATUS=daemon " + std::to_string(*before) + " was killed by signal 9");
  EXPECT_TRUE(manager.Hears("STATUS=has daemon " + std::to_string(*after)));

  // Another keeper takes the daemon over, and says so.
  keeper_.KillKeeper();
  ASSERT_THAT(keeper_.Start({{"NOTIFY_SOCKET", name}}), IsOk());
  EXPECT_EQ(manager.Next(), "READY=1");
  EXPECT_EQ(manager.Next(), "STATUS=has daemon " + std::to_string(*after));

  EXPECT_EQ(StatusOfStopped(), 0);
  EXPECT_EQ(manager.Next(), "STOPPING=1");
}

TEST_F(ServiceManagerTest, watchdog_hears_nothing_from_a_keeper_that_stands_still) {
  const std::string name = "@torpor-notify-" + std::to_string(::getpid());
  NotifySocket manager(name);
  ASSERT_THAT(keeper_.Start({{"NOTIFY_SOCKET", name}, {"WATCHDOG_USEC", "200000"}}), IsOk());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(manager.Hears("WATCHDOG=1"));

  // Its daemon may stand still: that is no reason to end the one who keeps what it had.
  keeper_.SignalDaemon(SIGSTOP);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(manager.Hears("WATCHDOG=1"));
  keeper_.SignalDaemon(SIGCONT);

  keeper_.SignalKeeper(SIGSTOP);
  while (!manager.Next(Duration()).empty()) {
  }
  EXPECT_EQ(manager.Next(seconds(1)), "");
  keeper_.SignalKeeper(SIGCONT);
  EXPECT_TRUE(manager.Hears("WATCHDOG=1"));
}

TEST_F(ServiceManagerTest, a_watchdog_of_another_process_hears_nothing) {
  const std::string name = dir_.path() + "/notify";
  NotifySocket manager(name);
  ASSERT_THAT(keeper_.Start({{"NOTIFY_SOCKET", name},
                             {"WATCHDOG_USEC", "1000"},
                             {"WATCHDOG_PID", std::to_string(::getpid())}}),
              IsOk());
  EXPECT_TRUE(manager.Hears("READY=1"));
  EXPECT_THAT(manager.Next(), HasSubstr("STATUS="));
  EXPECT_EQ(manager.Next(milliseconds(200)), "");
}

TEST_F(ServiceManagerTest, a_socket_that_nobody_reads_or_that_is_none_holds_up_nothing) {
  for (const std::string& name :
       {dir_.path() + "/nobody", std::string("vsock:2:1"), std::string(4096, '/')}) {
    ASSERT_THAT(keeper_.Start({{"NOTIFY_SOCKET", name}, {"WATCHDOG_USEC", "200000"}}), IsOk());
    EXPECT_EQ(StatusOfStopped(), 0);
  }
}

}  // namespace
}  // namespace torpor
