#include "client/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

class DiscoveryTest : public testing::Test {
 protected:
  DiscoveryTest() {
    char dir[] = "/tmp/torpor-XXXXXX";
    EXPECT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
  }
  ~DiscoveryTest() override { std::filesystem::remove_all(dir_); }

  std::string Path(const std::string& uuid) const { return dir_ + "/" + uuid + "/worker.sock"; }
  UniqueFd Listen(const std::string& uuid) const {
    std::filesystem::create_directories(dir_ + "/" + uuid);
    auto listener = net::ListenUnix(Path(uuid), 0600);
    EXPECT_THAT(listener, IsOk());
    return *std::move(listener);
  }

  std::string dir_;
};

TEST_F(DiscoveryTest, TheDevicesDaemon) {
  const UniqueFd one = Listen("GPU-1");
  const UniqueFd two = Listen("GPU-2");
  const auto found = FindWorkerSocket(dir_, "GPU-2");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*found, Path("GPU-2"));
  const auto missing = FindWorkerSocket(dir_, "GPU-3");
  EXPECT_THAT(missing, HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_EQ(missing.status().details().at("candidates"), Path("GPU-1") + "," + Path("GPU-2"));
}

TEST_F(DiscoveryTest, TheOnlyDaemon) {
  EXPECT_THAT(FindWorkerSocket(dir_, ""), HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_THAT(FindWorkerSocket(dir_ + "/missing", ""), HasReason("DAEMON_NOT_RUNNING"));
  const UniqueFd one = Listen("host-1");
  std::filesystem::create_directory(dir_ + "/something_else");
  auto found = FindWorkerSocket(dir_, "");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*found, Path("host-1"));
  (void)Listen("host-0");  // left behind by a daemon that was killed
  found = FindWorkerSocket(dir_, "");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(*found, Path("host-1"));
}

TEST_F(DiscoveryTest, SeveralDaemons) {
  const UniqueFd one = Listen("host-1");
  const UniqueFd two = Listen("host-2");
  const auto found = FindWorkerSocket(dir_, "");
  EXPECT_THAT(found, HasReason("AMBIGUOUS_DAEMON"));
  EXPECT_EQ(found.status().details().at("candidates"), Path("host-1") + "," + Path("host-2"));
}

}  // namespace
}  // namespace torpor::client
