#ifndef TORPOR_TESTS_SECURITY_ACCESS_FIXTURE_H_
#define TORPOR_TESTS_SECURITY_ACCESS_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/as_user.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {

// Users that nobody has, and what kFile gives them.
inline const User kOperator = {61001, 61001};
inline const User kWorker = {61002, 61002};
inline const User kOther = {61003, 61003, {61800, 61900}};  // a worker by its second group
inline const User kReader = {61004, 61004};
inline const User kBoth = {61005, 61005};  // reader by its uid, worker by its gid
inline const User kNobody = {61006, 61006};

constexpr char kFile[] = R"(# Who may do what.
grant { role: OPERATOR uid: 61001 }
grant { role: WORKER uid: 61002 }
grant { role: WORKER gid: 61900 }
grant {
  role: READER
  uid: [61004, 61005]
}
grant { role: WORKER gid: 61005 }
)";

// torpord with an access file, and its callers and workers of several users.
class AccessTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become other users";
    if (!std::filesystem::exists(kSetpriv)) GTEST_SKIP() << "needs setpriv";
    ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
    WriteFile(kFile);
    // In a place that they may read.
    std::filesystem::copy_file(std::filesystem::absolute(WorkerProcess::kProgram),
                               dir_.path() + "/test_worker");
  }

  std::string file() const { return dir_.path() + "/access.conf"; }
  void WriteFile(const std::string& text) const { std::ofstream(file()) << text; }
  std::vector<std::string> Flags(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--access=" + file(), "--socket_mode=0666", "--safety_reserve=4MiB",
                               "--host_pool=256MiB"});
    return more;
  }
  void StartDaemon(const std::vector<std::string>& more = {}) {
    auto daemon = DaemonProcess::Start(dir_.path(), Flags(more));
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }

  // A process of this user that links libtorpor.
  Result<std::unique_ptr<WorkerProcess>> ConnectWorker(const User& user, const std::string& socket,
                                                       const std::string& name,
                                                       const std::string& more = "") const {
    const std::string script = dir_.path() + "/as-" + std::to_string(user.uid);
    std::string groups;
    for (const gid_t group : user.groups) groups += "," + std::to_string(group);
    {
      std::ofstream out(script);
      out << "#!/bin/sh\nexec " << kSetpriv << " --reuid=" << user.uid << " --regid=" << user.gid
          << (groups.empty() ? " --clear-groups" : " --groups=" + groups.substr(1)) << " "
          << dir_.path() << "/test_worker\n";
    }
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    return WorkerProcess::Connect(socket, name, "guard", more, script);
  }

  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + seconds(60));
    return context;
  }
  static std::unique_ptr<v1::MemoryService::Stub> StubAs(const User& user,
                                                         const std::string& socket) {
    const auto channel = ChannelAs(user, socket);
    EXPECT_NE(channel, nullptr) << "uid " << user.uid;
    return channel == nullptr ? nullptr : v1::MemoryService::NewStub(channel);
  }
  v1::MemoryService::Stub& As(const User& user) {
    auto& stub = stubs_[user.uid];
    if (stub == nullptr) stub = StubAs(user, daemon_->control_socket());
    return *stub;
  }

  // "OK", or the reason of the error.
  static std::string Outcome(const grpc::Status& status) {
    if (status.ok()) return "OK";
    const std::string reason = ReasonOf(status);
    return reason.empty() ? status.error_message() : reason;
  }

  // How many lines of the log with `text` there were, with those that were left out.
  static int Told(const std::string& log, const std::string& text) {
    const std::string more = "[and ";
    int told = 0;
    for (size_t at = 0; (at = log.find(text, at)) != std::string::npos; ++at) {
      const std::string line = log.substr(at, log.find('\n', at) - at);
      const size_t left_out = line.find(more);
      told += 1 + (left_out == line.npos ? 0 : std::stoi(line.substr(left_out + more.size())));
    }
    return told;
  }

  static constexpr char kSetpriv[] = "/usr/bin/setpriv";
  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::map<uid_t, std::unique_ptr<v1::MemoryService::Stub>> stubs_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_SECURITY_ACCESS_FIXTURE_H_
