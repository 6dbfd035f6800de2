#include "lib/net/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "lib/base/status_matchers.h"
#include "lib/net/frame.h"

namespace torpor::net {
namespace {

class UnixSocketTest : public testing::Test {
 protected:
  UnixSocketTest() {
    char dir[] = "/tmp/torpor-XXXXXX";
    EXPECT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    path_ = dir_ + "/s";
  }
  ~UnixSocketTest() override { std::filesystem::remove_all(dir_); }

  std::string dir_;
  std::string path_;
};

TEST_F(UnixSocketTest, ConnectsWithCredentials) {
  const auto listener = ListenUnix(path_, 0600);
  ASSERT_THAT(listener, IsOk());
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto client = ConnectUnix(path_);
  ASSERT_THAT(client, IsOk());
  const auto server = AcceptUnix(listener->get());
  ASSERT_THAT(server, IsOk());
  const auto peer = GetPeerCredentials(server->get());
  ASSERT_THAT(peer, IsOk());
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
}

TEST_F(UnixSocketTest, NobodyListens) {
  EXPECT_THAT(ConnectUnix(path_), HasReason("DAEMON_NOT_RUNNING"));
  (void)ListenUnix(path_, 0600);  // closed again: a stale file
  const auto client = ConnectUnix(path_);
  EXPECT_THAT(client, HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_EQ(client.status().details().at("path"), path_);
}

TEST_F(UnixSocketTest, AStaleSocketIsReplacedAnythingElseIsNot) {
  (void)ListenUnix(path_, 0600);
  const auto listener = ListenUnix(path_, 0600);
  ASSERT_THAT(listener, IsOk());
  EXPECT_THAT(ConnectUnix(path_), IsOk());
  const std::string file = dir_ + "/file";
  ASSERT_EQ(::mkdir(file.c_str(), 0700), 0);
  EXPECT_FALSE(ListenUnix(file, 0600).ok());
}

TEST_F(UnixSocketTest, LongPaths) {
  const std::string limit = "/" + std::string(106, 'x');
  EXPECT_THAT(ConnectUnix(limit), HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_THAT(ConnectUnix(limit + "x"), HasReason("SOCKET_PATH_TOO_LONG"));
  EXPECT_THAT(ListenUnix(limit + "x", 0600), HasReason("SOCKET_PATH_TOO_LONG"));
  EXPECT_THAT(ConnectUnix(""), HasReason("SOCKET_PATH_TOO_LONG"));
}

TEST_F(UnixSocketTest, ShutdownEndsAccept) {
  const auto listener = ListenUnix(path_, 0600);
  ASSERT_THAT(listener, IsOk());
  std::thread accepting(
      [&] { EXPECT_THAT(AcceptUnix(listener->get()), HasReason("LISTENER_CLOSED")); });
  ::shutdown(listener->get(), SHUT_RDWR);
  accepting.join();
}

TEST_F(UnixSocketTest, SendingGivesUpOnAPeerThatDoesNotRead) {
  const auto listener = ListenUnix(path_, 0600);
  ASSERT_THAT(listener, IsOk());
  const auto client = ConnectUnix(path_);
  ASSERT_THAT(client, IsOk());
  ASSERT_THAT(SetSendTimeout(client->get(), milliseconds(20)), IsOk());
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = SendFrame(client->get(), 1, 1, std::string(50000, 'x'));
  }
  EXPECT_THAT(status, HasCode(Code::kDeadlineExceeded));
}

TEST_F(UnixSocketTest, TellsWhetherASocketIsInUse) {
  EXPECT_FALSE(IsSocketInUse(path_));
  EXPECT_FALSE(IsSocketInUse(path_ + "/below"));
  EXPECT_FALSE(IsSocketInUse(std::string(200, 'x')));
  auto listener = ListenUnix(path_, 0600);
  ASSERT_THAT(listener, IsOk());
  EXPECT_TRUE(IsSocketInUse(path_));
  EXPECT_FALSE(IsSocketInUse(dir_));
  // Nobody has come.
  ASSERT_EQ(::fcntl(listener->get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_FALSE(AcceptUnix(listener->get()).ok());
  listener->Reset();
  EXPECT_FALSE(IsSocketInUse(path_));
}

}  // namespace
}  // namespace torpor::net
