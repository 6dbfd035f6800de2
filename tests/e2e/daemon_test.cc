// torpord as a process: start, stop, sockets, flags.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::HasSubstr;
using testing::Not;

bool IsSocket(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

class DaemonTest : public testing::Test {
 protected:
  std::unique_ptr<DaemonProcess> Start(const std::vector<std::string>& flags = {}) {
    auto daemon = DaemonProcess::Start(dir_.path(), flags);
    if (daemon.ok()) return *std::move(daemon);
    ADD_FAILURE() << daemon.status().ToString();
    return nullptr;
  }
  Finished RunToEnd(const std::vector<std::string>& flags) {
    const auto finished = RunProgram(DaemonProcess::Command(dir_.path(), flags));
    EXPECT_THAT(finished, IsOk());
    return finished.ok() ? *finished : Finished();
  }
  TempDir dir_;
};

TEST_F(DaemonTest, ServesAndStopsOnSigterm) {
  const auto daemon = Start({"--host_device_memory=64MiB"});
  ASSERT_NE(daemon, nullptr);
  EXPECT_THAT(daemon->greeting(), HasSubstr("serves host-0 (host, host memory, 64.00 MiB) at " +
                                            daemon->control_socket()));
  EXPECT_TRUE(IsSocket(daemon->control_socket()));
  EXPECT_TRUE(IsSocket(daemon->worker_socket()));
  EXPECT_EQ(ModeOf(daemon->control_socket()), 0660U);
  EXPECT_EQ(ModeOf(daemon->worker_socket()), 0660U);
  const auto usage = daemon->Usage();
  ASSERT_THAT(usage, IsOk());
  EXPECT_EQ(usage->device().total_bytes(), MiB(64).value());
  EXPECT_EQ(*daemon->Stop(), 0);
  EXPECT_FALSE(IsSocket(daemon->control_socket()));
  EXPECT_FALSE(IsSocket(daemon->worker_socket()));
  EXPECT_THAT(daemon->log(), HasSubstr("TERM: stopping"));
  EXPECT_THAT(daemon->log(), HasSubstr("info stopped"));
}

TEST_F(DaemonTest, StopsOnSigintAndIgnoresSigpipe) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  daemon->process().Signal(SIGPIPE);
  EXPECT_THAT(daemon->Usage(), IsOk());
  daemon->process().Signal(SIGINT);
  EXPECT_EQ(*daemon->process().Wait(), 0);
}

TEST_F(DaemonTest, SocketModeIsAFlag) {
  const auto daemon = Start({"--socket_mode=0600"});
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(ModeOf(daemon->control_socket()), 0600U);
  EXPECT_EQ(ModeOf(daemon->worker_socket()), 0600U);
}

TEST_F(DaemonTest, ASecondOneRefuses) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  const Finished second = RunToEnd({});
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.errors, HasSubstr("DAEMON_ALREADY_RUNNING"));
  EXPECT_THAT(second.errors, HasSubstr("pid " + std::to_string(daemon->process().pid())));
  EXPECT_THAT(daemon->Usage(), IsOk());
}

TEST_F(DaemonTest, AnotherDeviceHasAnotherDaemon) {
  const auto first = Start();
  ASSERT_NE(first, nullptr);
  auto second = DaemonProcess::Start(dir_.path(), {"--device=host-1"});
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT((*second)->greeting(), HasSubstr(dir_.path() + "/host-1/control.sock"));
  EXPECT_EQ(*(*second)->Stop(), 0);
  EXPECT_THAT(first->Usage(), IsOk());
}

TEST_F(DaemonTest, stale_socket_file) {
  const auto killed = Start();
  ASSERT_NE(killed, nullptr);
  killed->process().Signal(SIGKILL);
  EXPECT_EQ(*killed->process().Wait(), 128 + SIGKILL);
  ASSERT_TRUE(IsSocket(killed->control_socket()));
  ASSERT_TRUE(IsSocket(killed->worker_socket()));

  const auto next = Start();
  ASSERT_NE(next, nullptr);
  EXPECT_THAT(next->Usage(), IsOk());
  const Finished another = RunToEnd({});
  EXPECT_EQ(another.exit_status, 1);
  EXPECT_THAT(another.errors, HasSubstr("DAEMON_ALREADY_RUNNING"));
  EXPECT_THAT(next->Usage(), IsOk());
  EXPECT_EQ(*next->Stop(), 0);
}

TEST_F(DaemonTest, BadFlagsAreOneLine) {
  const std::pair<const char*, std::string> cases[] = {
      {"--driver=gpu", "BAD_FLAG"},
      {"--host_pool=lots", "BAD_SIZE"},
      {"--listen=0.0.0.0:7070", "NOT_LOOPBACK"},
      {"--metrics=localhost:1", "BAD_LISTEN_ADDRESS"},
      {"--no_such_flag", "BAD_FLAG"},
      {"--worker_deadline=-1s", "BAD_DURATION"},
      {"--log_level=loud", "BAD_LOG_LEVEL"},
      {"--socket_mode=9", "BAD_FLAG"},
      {"--host_granularity=3KiB", ""},
      {"--host_device_memory=1KiB", ""},
      {"--safety_reserve=2GiB", "BAD_FLAG"},
      {"--device=../x", "BAD_FLAG"},
  };
  for (const auto& [flag, reason] : cases) {
    const Finished finished = RunToEnd({flag});
    EXPECT_EQ(finished.exit_status, 2) << flag;
    EXPECT_EQ(finished.output, "") << flag;
    EXPECT_EQ(std::count(finished.errors.begin(), finished.errors.end(), '\n'), 1)
        << finished.errors;
    EXPECT_THAT(finished.errors, testing::StartsWith("torpord: INVALID_ARGUMENT " + reason))
        << flag;
  }
}

TEST_F(DaemonTest, HelpAndVersion) {
  const Finished help = RunToEnd({"--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.output, HasSubstr("--host_pool=SIZE|auto"));
  const Finished version = RunToEnd({"--version"});
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_THAT(version.output, testing::MatchesRegex("torpord [0-9.]+\n"));
}

TEST_F(DaemonTest, RefusesADirectoryThatCannotBe) {
  const Finished finished = RunToEnd({"--runtime_dir=/proc/no"});
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.errors, HasSubstr("create folder /proc/no"));
  const Finished deep = RunToEnd({"--runtime_dir=/tmp/" + std::string(100, 'x')});
  EXPECT_EQ(deep.exit_status, 2);
  EXPECT_THAT(deep.errors, HasSubstr("SOCKET_PATH_TOO_LONG"));
}

HealthCheckResponse::ServingStatus HealthOf(const std::shared_ptr<grpc::Channel>& channel,
                                            const std::string& service) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = Health::NewStub(channel)->Check(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.status();
}

TEST_F(DaemonTest, ReportsHealth) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(HealthOf(daemon->channel(), ""), HealthCheckResponse::SERVING);
  EXPECT_EQ(HealthOf(daemon->channel(), "torpor.v1.MemoryService"), HealthCheckResponse::SERVING);
}

TEST_F(DaemonTest, ListensOnLoopback) {
  const auto daemon = Start({"--listen=127.0.0.1:0"});
  ASSERT_NE(daemon, nullptr);
  const size_t at = daemon->greeting().find("127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << daemon->greeting();
  const std::string address = daemon->greeting().substr(at);
  EXPECT_THAT(address, Not(testing::EndsWith(":0")));
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  EXPECT_EQ(HealthOf(channel, ""), HealthCheckResponse::SERVING);

  // The port is taken, whatever the device.
  const Finished second = RunToEnd({"--device=host-1", "--listen=" + address});
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.errors, HasSubstr("CANNOT_LISTEN"));
}

TEST_F(DaemonTest, RefusesToListenBeyondLoopback) {
  const Finished finished = RunToEnd({"--listen=0.0.0.0:7070"});
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_THAT(finished.errors, HasSubstr("mTLS"));
}

TEST_F(DaemonTest, RaisesTheLimitOfOpenFiles) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  const std::string limits =
      ReadFile("/proc/" + std::to_string(daemon->process().pid()) + "/limits");
  const size_t at = limits.find("Max open files");
  ASSERT_NE(at, std::string::npos);
  std::istringstream words(limits.substr(at + sizeof "Max open files"));
  std::string soft;
  std::string hard;
  words >> soft >> hard;
  EXPECT_EQ(soft, hard);
}

TEST_F(DaemonTest, AutoIsTheHostDriverWhereThereIsNoGpu) {
  if (std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg")) {
    GTEST_SKIP() << "there is a GPU";
  }
  const auto daemon = Start({"--driver=auto"});
  ASSERT_NE(daemon, nullptr);
  EXPECT_THAT(daemon->greeting(), HasSubstr("serves host-0 (host, "));
  // A GPU that is named and not there is no reason to serve host memory under its name.
  const Finished lost =
      RunToEnd({"--driver=auto", "--device=GPU-00000000-0000-0000-0000-000000000000"});
  EXPECT_EQ(lost.exit_status, 1);
  const Finished cuda = RunToEnd({"--driver=cuda"});
  EXPECT_EQ(cuda.exit_status, 1);
}

}  // namespace
}  // namespace torpor
