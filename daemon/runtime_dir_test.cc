#include "daemon/runtime_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

class RuntimeDirTest : public testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/torpor.XXXXXX";
    ASSERT_NE(::mkdtemp(dir), nullptr);
    root_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(RuntimeDirTest, MakesFoldersWhateverTheUmask) {
  const mode_t before = ::umask(0777);
  const auto dir = DeviceDir::Claim(root_ + "/run", "host-0");
  ::umask(before);
  ASSERT_THAT(dir, IsOk());
  EXPECT_EQ(dir->worker_socket(), root_ + "/run/host-0/worker.sock");
  EXPECT_EQ(dir->control_socket(), root_ + "/run/host-0/control.sock");
  struct stat info {};
  ASSERT_EQ(::stat((root_ + "/run/host-0").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755U);
}

TEST_F(RuntimeDirTest, OneAtATime) {
  {
    const auto first = DeviceDir::Claim(root_, "host-0");
    ASSERT_THAT(first, IsOk());
    const auto second = DeviceDir::Claim(root_, "host-0");
    ASSERT_THAT(second, HasReason("DAEMON_ALREADY_RUNNING"));
    EXPECT_EQ(second.status().Number("pid"), ::getpid());
    EXPECT_THAT(DeviceDir::Claim(root_, "host-1"), IsOk());
  }
  EXPECT_THAT(DeviceDir::Claim(root_, "host-0"), IsOk());
}

TEST_F(RuntimeDirTest, RemovesSocketsAndOnlyThem) {
  {
    const auto dir = DeviceDir::Claim(root_, "host-0");
    ASSERT_THAT(dir, IsOk());
    std::ofstream(dir->worker_socket()) << "";
    std::ofstream(dir->control_socket()) << "";
  }
  EXPECT_FALSE(std::filesystem::exists(root_ + "/host-0/worker.sock"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/host-0/control.sock"));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/host-0/lock"));
}

TEST_F(RuntimeDirTest, RefusesWhatCannotWork) {
  EXPECT_THAT(DeviceDir::Claim(root_, "../x"), HasReason("BAD_DEVICE_NAME"));
  EXPECT_THAT(DeviceDir::Claim(root_ + "/" + std::string(100, 'x'), "host-0"),
              HasReason("SOCKET_PATH_TOO_LONG"));
  EXPECT_THAT(DeviceDir::Claim(root_ + "/a/b", "host-0"), HasReason("ERRNO_ENOENT"));
}

TEST_F(RuntimeDirTest, ADeviceHasOneDaemonWhateverTheRuntimeDirectory) {
  const std::string device = "GPU-test-" + std::to_string(::getpid());
  {
    const auto first = LockDevice(device);
    ASSERT_THAT(first, IsOk());
    EXPECT_THAT(LockDevice(device), HasReason("DAEMON_ALREADY_RUNNING"));
    EXPECT_THAT(LockDevice(device + "-other"), IsOk());
  }
  EXPECT_THAT(LockDevice(device), IsOk());
}

TEST_F(RuntimeDirTest, LeavesTheSocketsOfWhoeverCameAfterTheFolderWasRemoved) {
  std::string socket;
  std::optional<DeviceDir> second;
  {
    const auto first = DeviceDir::Claim(root_, "host-0");
    ASSERT_THAT(first, IsOk());
    std::filesystem::remove_all(root_ + "/host-0");
    auto claimed = DeviceDir::Claim(root_, "host-0");
    ASSERT_THAT(claimed, IsOk());
    second.emplace(*std::move(claimed));
    socket = second->worker_socket();
    std::ofstream(socket) << "theirs";
  }
  EXPECT_TRUE(std::filesystem::exists(socket));
}

}  // namespace
}  // namespace torpor
