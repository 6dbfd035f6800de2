// torporctl and a daemon whose queue of connections others have filled.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

using testing::HasSubstr;

class FullQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=64MiB", "--safety_reserve=4MiB", "--host_pool=32MiB"});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }

  // The daemon accepts nothing, and nobody is let in any more.
  void Fill() {
    daemon_->process().Signal(SIGSTOP);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    daemon_->control_socket().copy(address.sun_path, sizeof address.sun_path - 1);
    int result = 0;
    while (result == 0) {
      // Who has hung up keeps its place.
      const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      ASSERT_TRUE(fd.valid());
      result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    ASSERT_EQ(errno, EAGAIN);
  }
  std::unique_ptr<ChildProcess> Start(std::vector<std::string> arguments) {
    ChildProcess::Options options;
    options.command = std::move(arguments);
    options.command.insert(options.command.begin(),
                           std::filesystem::absolute("client/ctl/torporctl"));
    options.environment["TORPOR_RUNTIME_DIR"] = dir_.path();
    options.error_file = errors_;
    auto process = ChildProcess::Start(options);
    EXPECT_THAT(process, IsOk());
    return process.ok() ? *std::move(process) : nullptr;
  }
  // What it prints of a call that begins while the queue is full, which it is not for ever.
  std::string Print(const std::vector<std::string>& arguments) {
    Fill();
    const auto ctl = Start(arguments);
    std::this_thread::sleep_for(seconds(1));
    daemon_->process().Signal(SIGCONT);
    const auto output = ctl->ReadAll();
    EXPECT_THAT(output, IsOk());
    const auto status = ctl->Wait();
    EXPECT_THAT(status, IsOk());
    EXPECT_EQ(status.ok() ? *status : -1, 0) << ReadFile(errors_);
    return output.ok() ? *output : "";
  }

  TempDir dir_;
  const std::string errors_ = dir_.path() + "/errors";
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(FullQueueTest, CallsWaitForRoom) {
  EXPECT_THAT(Print({"usage"}), HasSubstr("Device host-0 "));
  EXPECT_THAT(Print({"sleep", "--all", "--level=1"}), HasSubstr("Freed 0 B"));
  EXPECT_THAT(Print({"reserve", "--name=next", "--part=all=1MiB", "--ttl=1h"}), HasSubstr("r-1"));
  EXPECT_THAT(Print({"health"}), HasSubstr("SERVING"));
  EXPECT_THAT(Print({"usage", "--all-devices"}), HasSubstr("host-0 "));
  EXPECT_THAT(Print({"top", "--once"}), HasSubstr("torporctl top  SERVING"));
  EXPECT_THAT(Print({"watch", "--json", "--timeout=5s"}), HasSubstr("\"cursor\""));
  EXPECT_THAT(ReadFile(errors_), testing::Not(HasSubstr("UNAVAILABLE")));
}

TEST_F(FullQueueTest, WaitsNoLongerThanItsTimeout) {
  Fill();
  const auto ctl = Start({"usage", "--timeout=500ms"});
  const auto status = ctl->Wait();
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(*status, 1);
  EXPECT_THAT(ReadFile(errors_), HasSubstr("UNAVAILABLE SOCKET_QUEUE_FULL"));
}

TEST_F(FullQueueTest, CanBeInterrupted) {
  Fill();
  const auto ctl = Start({"sleep", "--all", "--level=1"});
  std::this_thread::sleep_for(milliseconds(300));
  ctl->Signal(SIGINT);
  const auto status = ctl->Wait();
  ASSERT_THAT(status, IsOk());
  // It may not have been listening for signals yet.
  EXPECT_THAT(*status, testing::AnyOf(1, 128 + SIGINT));
}

}  // namespace
}  // namespace torpor
