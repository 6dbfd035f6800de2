#include "client/ctl/daemons.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "lib/net/unix_socket.h"

namespace torpor::ctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DaemonsTest : public testing::Test {
 protected:
  DaemonsTest() {
    char dir[] = "/tmp/torpor-XXXXXX";
    EXPECT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    ::unsetenv("TORPOR_RUNTIME_DIR");
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  ~DaemonsTest() override { std::filesystem::remove_all(dir_); }

  std::string Path(const std::string& device) const {
    return dir_ + "/" + device + "/control.sock";
  }
  UniqueFd Listen(const std::string& device) const {
    std::filesystem::create_directories(dir_ + "/" + device);
    auto listener = net::ListenUnix(Path(device), 0600);
    EXPECT_THAT(listener, IsOk());
    return *std::move(listener);
  }
  Result<std::vector<Daemon>> Find(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"usage", "--runtime-dir", dir_});
    const auto command = ParseCommand(arguments);
    EXPECT_THAT(command, IsOk());
    return FindDaemons(*command);
  }
  std::string dir_;
};

TEST_F(DaemonsTest, LooksWhereDaemonsAre) {
  EXPECT_THAT(RuntimeDirs("", true), ElementsAre("/run/torpor"));
  EXPECT_THAT(RuntimeDirs("", false), ElementsAre("/run/torpor"));
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_THAT(RuntimeDirs("", true), ElementsAre("/run/torpor"));
  EXPECT_THAT(RuntimeDirs("", false), ElementsAre("/run/user/7/torpor", "/run/torpor"));
  ::setenv("TORPOR_RUNTIME_DIR", "/a", 1);
  EXPECT_THAT(RuntimeDirs("", false), ElementsAre("/a"));
  EXPECT_THAT(RuntimeDirs("/b", false), ElementsAre("/b"));
}

TEST_F(DaemonsTest, TheOnlyOne) {
  EXPECT_THAT(Find({}), HasReason("DAEMON_NOT_RUNNING"));
  (void)Listen("host-0");  // left behind by a daemon that was killed
  EXPECT_THAT(Find({}), HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_EQ(Find({}).status().details().at("candidates"), Path("host-0"));
  EXPECT_THAT(Find({"--device=host-0"}), HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_THAT(Find({"--target=" + Path("host-0")}), HasReason("DAEMON_NOT_RUNNING"));
  const UniqueFd one = Listen("host-1");
  for (const auto& found :
       {Find({}), Find({"--device=host-1"}), Find({"--target=" + Path("host-1")})}) {
    ASSERT_THAT(found, IsOk());
    ASSERT_EQ(found->size(), 1u);
    EXPECT_EQ(found->front().target, "unix:" + Path("host-1"));
  }
  EXPECT_EQ(Find({})->front().name, "host-1");
  const UniqueFd two = Listen("host-2");
  EXPECT_THAT(Find({}), HasReason("AMBIGUOUS_DAEMON"));
  EXPECT_EQ(Find({}).status().details().at("candidates"), Path("host-1") + "," + Path("host-2"));
}

TEST_F(DaemonsTest, SeveralAndThoseThatAreNotThere) {
  (void)Listen("host-0");
  EXPECT_THAT(Find({"--all-devices"}), HasReason("DAEMON_NOT_RUNNING"));
  const UniqueFd two = Listen("host-2");
  const UniqueFd one = Listen("host-1");
  const auto all = Find({"--all-devices"});
  ASSERT_THAT(all, IsOk());
  ASSERT_EQ(all->size(), 3u);
  EXPECT_THAT((*all)[0].status, HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_EQ((*all)[1].device, "host-1");
  EXPECT_THAT((*all)[1].status, IsOk());
  EXPECT_EQ((*all)[2].device, "host-2");
  const auto devices = Find({"--device=host-2,host-3"});
  ASSERT_THAT(devices, IsOk());
  EXPECT_THAT((*devices)[0].status, IsOk());
  EXPECT_THAT((*devices)[1].status, HasReason("DAEMON_NOT_RUNNING"));
  EXPECT_THAT((*devices)[1].status.message(), HasSubstr("host-3 under " + dir_));
  const auto targets = Find({"--target=localhost:7070", "--target=" + Path("host-0")});
  ASSERT_THAT(targets, IsOk());
  EXPECT_THAT((*targets)[0].status, IsOk());
  EXPECT_EQ((*targets)[0].device, "");
  EXPECT_THAT((*targets)[1].status, HasReason("DAEMON_NOT_RUNNING"));
}

TEST_F(DaemonsTest, OneThatIsNamedTwiceIsAskedOnce) {
  const UniqueFd one = Listen("host-1");
  const UniqueFd two = Listen("host-2");
  const auto devices = Find({"--device=host-1,host-2,host-1"});
  ASSERT_THAT(devices, IsOk());
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0].name, "host-1");
  EXPECT_EQ((*devices)[1].name, "host-2");
  std::filesystem::create_symlink(dir_ + "/host-1", dir_ + "/alias");
  const auto targets =
      Find({"--target=" + Path("host-1"), "--target=unix:" + Path("host-1"),
            "--target=unix://" + Path("host-1"), "--target=" + Path("alias"),
            "--target=localhost:7070", "--target=" + Path("host-2"), "--target=localhost:7070"});
  ASSERT_THAT(targets, IsOk());
  ASSERT_EQ(targets->size(), 3u);
  EXPECT_EQ((*targets)[0].name, "unix:" + Path("host-1"));
  EXPECT_EQ((*targets)[1].name, "localhost:7070");
  EXPECT_EQ((*targets)[2].name, "unix:" + Path("host-2"));
}

}  // namespace
}  // namespace torpor::ctl
