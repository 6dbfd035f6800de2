#include "daemon/access/last_policy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "lib/base/status_matchers.h"
#include "tests/harness/temp_dir.h"

namespace torpor::access {
namespace {

using Loaded = Result<std::optional<Policy>>;

Loaded Good(const std::string& text) {
  Result<Policy> policy = Policy::Parse(text, "test");
  EXPECT_THAT(policy, IsOk());
  return std::optional<Policy>(*std::move(policy));
}
Loaded Wrong() { return Policy::Parse("grant { role: BOSS }", "test").status(); }

Roles RolesOf(const Loaded& chosen, uid_t uid, std::vector<gid_t> groups = {}) {
  Identity identity;
  identity.kind = Identity::Kind::kSocket;
  identity.peer.uid = uid;
  identity.peer.gid = 4711;
  identity.peer.groups = std::move(groups);
  return (*chosen)->Judge(std::move(identity)).roles;
}

class LastPolicyTest : public testing::Test {
 protected:
  TempDir dir_;
  const std::string path_ = dir_.path() + "/access.last";
  const LastPolicy last_{path_, "/etc/access.conf"};
};

TEST_F(LastPolicyTest, IsWhatTheDaemonBeforeHasRead) {
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE")) << "nobody, at first";
  const Loaded good =
      last_.Choose(Good("grant { role: [OPERATOR, READER] uid: 7 user: \"root\" }\n"
                        "grant { role: WORKER gid: 8 group: \"root\" certificate: \"cn:a "
                        "\\\"b\\\"\" loopback: true }"));
  ASSERT_THAT(good, IsOk());
  struct stat about {};
  ASSERT_EQ(::stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600U);
  testing::internal::CaptureStderr();
  const Loaded last = last_.Choose(Wrong());
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, testing::HasSubstr("error the access file is wrong: INVALID_ARGUMENT BAD_ACC"));
  ASSERT_THAT(last, IsOk());
  ASSERT_TRUE(last->has_value());
  EXPECT_EQ((*last)->ToText(), (*good)->ToText());
  EXPECT_EQ(RolesOf(last, 7), kOperator | kReader);
  EXPECT_EQ(RolesOf(last, 0), kOperator | kReader);
  EXPECT_EQ(RolesOf(last, 9), kNobody);
  EXPECT_EQ(RolesOf(last, 9, {8}), kWorker);
  EXPECT_EQ(RolesOf(last, 9, {0}), kWorker);
  Identity identity;
  identity.kind = Identity::Kind::kCertificate;
  identity.names = {"cn:a \"b\""};
  EXPECT_EQ((*last)->Judge(identity).roles, kWorker);
  identity.kind = Identity::Kind::kLoopback;
  EXPECT_EQ((*last)->Judge(identity).roles, kWorker);

  // It is not kept for longer than it is good.
  ASSERT_THAT(last_.Choose(Good("grant { role: READER uid: 7 }")), IsOk());
  EXPECT_EQ(RolesOf(last_.Choose(Wrong()), 7), kReader);
  last_.Forget();
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE"));
}

TEST_F(LastPolicyTest, IsNotAnothers) {
  const Loaded good = Good("grant { role: READER uid: 7 }");
  ASSERT_THAT(last_.Choose(good), IsOk());
  EXPECT_THAT(LastPolicy(path_, "/etc/access.conf2").Choose(Wrong()), HasReason("BAD_ACCESS_FILE"));
  EXPECT_THAT(last_.Choose(Wrong()), IsOk());
  ASSERT_EQ(::chmod(path_.c_str(), 0620), 0);
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE"));
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  ASSERT_EQ(::rename(path_.c_str(), (path_ + "2").c_str()), 0);
  ASSERT_EQ(::symlink((path_ + "2").c_str(), path_.c_str()), 0);
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE"));
  ASSERT_THAT(last_.Choose(good), IsOk());
  EXPECT_THAT(last_.Choose(Wrong()), IsOk()) << "the link is replaced, not followed";
  std::ofstream(path_) << "# /etc/access.conf\ngrant { role: OPER";
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE")) << "it is damaged";
  ASSERT_THAT(last_.Choose(good), IsOk());
  // Root may, outside of a sandbox.
  if (::chown(path_.c_str(), 4711, 4711) != 0) return;
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE"));
}

TEST_F(LastPolicyTest, GoesWithTheLastDaemonThatHadAFile) {
  ASSERT_THAT(last_.Choose(Good("grant { role: READER uid: 7 }")), IsOk());
  ASSERT_THAT(last_.Choose(std::optional<Policy>()), IsOk());
  EXPECT_THAT(last_.Choose(Wrong()), HasReason("BAD_ACCESS_FILE"));
}

}  // namespace
}  // namespace torpor::access
