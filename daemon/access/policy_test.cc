#include "daemon/access/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/harness/temp_dir.h"

namespace torpor::access {
namespace {

using testing::HasSubstr;

Identity Peer(uid_t uid, gid_t gid, std::vector<gid_t> groups = {}) {
  Identity identity;
  identity.kind = Identity::Kind::kSocket;
  identity.peer = {uid, gid, 1, std::move(groups)};
  return identity;
}

Identity Certificate(std::vector<std::string> names) {
  Identity identity;
  identity.kind = Identity::Kind::kCertificate;
  identity.names = std::move(names);
  return identity;
}

Identity Loopback() {
  Identity identity;
  identity.kind = Identity::Kind::kLoopback;
  return identity;
}

Policy Parsed(const std::string& text) {
  auto policy = Policy::Parse(text, "f");
  EXPECT_THAT(policy, IsOk());
  return policy.ok() ? *std::move(policy) : Policy();
}

TEST(PolicyTest, RolesOfAllGrantsAddUp) {
  const Policy policy = Parsed(
      "grant { role: READER uid: 1 uid: 2 }\n"
      "grant { role: WORKER gid: [7, 8] }\n"
      "grant { role: OPERATOR user: \"root\" }\n"
      "grant { role: [READER, WORKER] group: \"root\" }\n");
  EXPECT_EQ(policy.Judge(Peer(1, 1)).roles, kReader);
  EXPECT_EQ(policy.Judge(Peer(1, 7)).roles, kReader | kWorker);
  EXPECT_EQ(policy.Judge(Peer(3, 3, {5, 8})).roles, kWorker);
  EXPECT_EQ(policy.Judge(Peer(0, 3)).roles, kOperator);
  EXPECT_EQ(policy.Judge(Peer(3, 0)).roles, kReader | kWorker);
  EXPECT_EQ(policy.Judge(Peer(3, 3)).roles, kNobody);
  // A uid is no gid, and what is no socket has neither.
  EXPECT_EQ(policy.Judge(Peer(8, 1)).roles, kNobody);
  EXPECT_EQ(policy.Judge(Loopback()).roles, kNobody);
  EXPECT_EQ(policy.Judge(Certificate({})).roles, kNobody);
  EXPECT_EQ(policy.Judge(Identity()).roles, kNobody);
}

TEST(PolicyTest, OnlyAMereWorkerIsHeldToItsOwn) {
  const Policy policy = Parsed(
      "grant { role: WORKER uid: 1 uid: 2 loopback: true certificate: \"dns:b\" }\n"
      "grant { role: WORKER certificate: \"dns:a\" }\n"
      "grant { role: OPERATOR uid: 2 }\n");
  const Caller worker = policy.Judge(Peer(1, 1));
  ASSERT_TRUE(worker.owner.has_value());
  EXPECT_EQ(worker.owner->name, "uid:1");
  EXPECT_EQ(worker.owner->uid, uid_t{1});
  EXPECT_FALSE(policy.Judge(Peer(2, 1)).owner.has_value());
  // The first grant decides the name, and a certificate has no sessions.
  const Caller job = policy.Judge(Certificate({"dns:a", "dns:b"}));
  ASSERT_TRUE(job.owner.has_value());
  EXPECT_EQ(job.owner->name, "dns:b");
  EXPECT_FALSE(job.owner->uid.has_value());
  EXPECT_EQ(policy.Judge(Loopback()).owner->name, "loopback");
}

TEST(PolicyTest, NamesOfCertificatesAreComparedAsTheyAre) {
  const Policy policy = Parsed(
      "grant { role: READER certificate: \"dns:a.example\" certificate: \"uri:spiffe://x/y\"\n"
      "        certificate: \"cn:Ops\" }\n");
  for (const char* const name : {"dns:a.example", "uri:spiffe://x/y", "cn:Ops"}) {
    EXPECT_EQ(policy.Judge(Certificate({"dns:other", name})).roles, kReader) << name;
  }
  for (const char* const name :
       {"cn:a.example", "dns:A.example", "dns:b.a.example", "dns:*.example", "uri:spiffe://x/",
        "cn:ops", "dns:Ops", "a.example"}) {
    EXPECT_EQ(policy.Judge(Certificate({name})).roles, kNobody) << name;
  }
  EXPECT_EQ(policy.Judge(Certificate({std::string("dns:a.example\0x", 15)})).roles, kNobody);
}

TEST(PolicyTest, ErrorsTellTheLine) {
  const struct {
    const char* text;
    const char* line;
    const char* what;
  } cases[] = {
      {"# fine\ngrant {\n  role: BOSS uid: 1 }", "3", "BOSS"},
      {"grant { role: READER uid: 1 }\ngrant { role: READER", "2", ""},
      {"grant { role: READER uid: -1 }", "1", "-"},
      {"\n\ngrant { role: READER\n uid: 1\n colour: 3 }", "5", "colour"},
      {"\ngrant { uid: 1 }", "2", "no role"},
      {"grant { role: READER uid: 1 }\n\ngrant { role: READER }", "3", "to nobody"},
      {"grant { role: READER loopback: false }", "1", "to nobody"},
      {"grant { role: ROLE_UNSPECIFIED uid: 1 }", "1", "OPERATOR, WORKER or READER"},
      {"grant { role: READER\n user: \"root\"\n user: \"no-such-user\" }", "3", "no-such-user"},
      {"grant { role: READER\n group: \"no-such-group\" }", "2", "no-such-group"},
      {"grant { role: READER\n\n certificate: \"dns:a\" certificate: \"b.example\" }", "3",
       "dns:NAME"},
      {"grant { role: READER certificate: \"dns:\" }", "1", "dns:NAME"},
  };
  for (const auto& wrong : cases) {
    const auto policy = Policy::Parse(wrong.text, "access.conf");
    ASSERT_THAT(policy, HasReason("BAD_ACCESS_FILE")) << wrong.text;
    EXPECT_EQ(policy.status().details().at("line"), wrong.line) << policy.status().ToString();
    EXPECT_THAT(policy.status().message(), HasSubstr(wrong.what));
    EXPECT_THAT(policy.status().message(),
                HasSubstr("access.conf:" + std::string(wrong.line) + ": "));
  }
  EXPECT_THAT(Policy::Parse("# nothing\n", "f"), HasReason("BAD_ACCESS_FILE"));
}

TEST(PolicyTest, AFileThatOthersMayChangeIsRefused) {
  const TempDir dir;
  const std::string path = dir.path() + "/access.conf";
  const auto missing = Policy::Load(path);
  ASSERT_THAT(missing, HasReason("BAD_ACCESS_FILE"));
  EXPECT_THAT(missing.status().message(), HasSubstr("No such file"));
  EXPECT_EQ(missing.status().details().at("path"), path);
  EXPECT_THAT(Policy::Load(dir.path()), HasReason("BAD_ACCESS_FILE"));
  std::ofstream(path) << "grant { role: READER uid: 1 }\n";
  EXPECT_THAT(Policy::Load(path), IsOk());
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_THAT(Policy::Load(path), HasReason("BAD_ACCESS_FILE"));
}

TEST(PolicyTest, TheExampleIsRight) {
  std::ifstream file("deploy/access.conf");
  std::string text(std::istreambuf_iterator<char>(file), {});
  // Of a machine without the package.
  const size_t group = text.find("group: \"torpor\"");
  ASSERT_NE(group, std::string::npos);
  text.replace(group, 15, "gid: 61900");
  const Policy policy = Parsed(text);
  EXPECT_EQ(policy.Judge(Peer(0, 0)).roles, kOperator);
  EXPECT_EQ(policy.Judge(Peer(5, 5, {61900})).roles, kWorker);
  EXPECT_EQ(policy.Judge(Certificate({"dns:orchestrator.example"})).roles, kOperator);
  EXPECT_EQ(policy.Judge(Peer(998, 998)).roles, kReader);
  // Whoever has no number in the user namespace.
  EXPECT_EQ(policy.Judge(Peer(65534, 65534)).roles, kNobody);
}

}  // namespace
}  // namespace torpor::access
