// A running torpord that is short of descriptors or threads.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

// Runs what follows under a limit of the shell's ulimit.
std::vector<std::string> Under(const std::string& limit) {
  return {"/bin/bash", "-c", "ulimit " + limit + " && exec \"$@\"", "bash"};
}

class Limits : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& launcher) {
    auto daemon = DaemonProcess::Start(
        dir_.path(), {"--host_device_memory=1GiB", "--safety_reserve=4MiB", "--host_pool=512MiB"},
        launcher);
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<WorkerProcess> Connect(const std::string& name) {
    auto worker = WorkerProcess::Connect(daemon_->worker_socket(), name);
    EXPECT_THAT(worker, IsOk());
    return worker.ok() ? *std::move(worker) : nullptr;
  }
  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + seconds(30));
    return context;
  }
  grpc::Status Sleep() {
    v1::SleepRequest request;
    request.mutable_selector()->set_all(true);
    request.set_level(1);
    v1::SleepResponse response;
    return daemon_->stub().Sleep(Context().get(), request, &response);
  }
  grpc::Status WakeUp() {
    v1::WakeUpRequest request;
    request.mutable_selector()->set_all(true);
    v1::WakeUpResponse response;
    return daemon_->stub().WakeUp(Context().get(), request, &response);
  }
  // On a connection of its own.
  grpc::Status UsageAnew() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel("unix:" + daemon_->control_socket(),
                                                   grpc::InsecureChannelCredentials(), arguments);
    v1::UsageResponse response;
    return v1::MemoryService::NewStub(channel)->Usage(Context().get(), {}, &response);
  }
  std::vector<UniqueFd> Silent(int count) {
    std::vector<UniqueFd> silent;
    for (int i = 0; i < count; ++i) {
      auto socket = net::ConnectUnix(daemon_->worker_socket());
      EXPECT_THAT(socket, IsOk());
      if (socket.ok()) silent.push_back(*std::move(socket));
    }
    return silent;
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(Limits, ExtentsLeaveDescriptorsToTheControlPlane) {
  Start(Under("-n 128"));
  ASSERT_NE(daemon_, nullptr);
  const auto worker = Connect("engine");
  ASSERT_NE(worker, nullptr);
  std::vector<std::string> segments;
  Status refused;
  while (segments.size() < 128) {
    const auto segment = worker->Allocate("weights", "4MiB", static_cast<int>(segments.size()));
    refused = segment.status();
    if (!segment.ok()) break;
    segments.push_back(*segment);
  }
  EXPECT_THAT(refused, HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  ASSERT_GT(segments.size(), 8U);

  EXPECT_THAT(daemon_->Usage(), IsOk());
  EXPECT_TRUE(UsageAnew().ok());
  EXPECT_NE(Connect("another"), nullptr);
  {
    const std::vector<UniqueFd> silent = Silent(40);
    EXPECT_TRUE(UsageAnew().ok());
    EXPECT_NE(Connect("patient"), nullptr);
  }
  const grpc::Status slept = Sleep();
  EXPECT_TRUE(slept.ok()) << slept.error_message();

  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(worker->Ask("free " + segments.back()), IsOk());
    segments.pop_back();
  }
  const grpc::Status woken = WakeUp();
  EXPECT_TRUE(woken.ok()) << woken.error_message();
  const auto again = worker->Allocate("weights", "4MiB", static_cast<int>(segments.size()));
  EXPECT_THAT(again, IsOk());
  if (again.ok()) segments.push_back(*again);
  for (size_t i = 0; i < segments.size(); ++i) {
    EXPECT_THAT(worker->Ask("check " + segments[i] + " " + std::to_string(i)), IsOk());
  }
  EXPECT_EQ(*daemon_->Stop(), 0);
}

TEST_F(Limits, SilentConnectionsNeitherKillNorStarve) {
  Start(Under("-n 128"));
  ASSERT_NE(daemon_, nullptr);
  const auto worker = Connect("engine");
  ASSERT_NE(worker, nullptr);
  const auto segment = worker->Allocate("weights", "4MiB", 7);
  ASSERT_THAT(segment, IsOk());
  const std::vector<UniqueFd> silent = Silent(300);
  EXPECT_TRUE(UsageAnew().ok());
  EXPECT_NE(Connect("late"), nullptr);
  EXPECT_TRUE(Sleep().ok());
  EXPECT_TRUE(WakeUp().ok());
  EXPECT_THAT(worker->Ask("check " + *segment + " 7"), IsOk());
  int lines = 0;
  const std::string log = daemon_->log();
  for (size_t at = log.find("refused"); at != std::string::npos; at = log.find("refused", at + 1)) {
    ++lines;
  }
  EXPECT_LE(lines, 4);
  const TimePoint start = Clock::Real().Now();
  EXPECT_EQ(*daemon_->Stop(), 0);
  EXPECT_LT(Clock::Real().Now() - start, seconds(4));
}

TEST_F(Limits, WithoutThreadsNothingIsLost) {
  // The limit of processes binds no root, and counts all that its user has.
  constexpr uid_t kNobody = 61234;
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become a user that runs nothing else";
  const std::string setpriv = "/usr/bin/setpriv";
  if (!std::filesystem::exists(setpriv)) GTEST_SKIP() << "needs setpriv";
  // In a place that this user may read.
  const std::string program = dir_.path() + "/torpord";
  std::filesystem::copy_file(DaemonProcess::Command(dir_.path()).front(), program);
  ASSERT_EQ(::chown(dir_.path().c_str(), kNobody, kNobody), 0);
  const std::string id = std::to_string(kNobody);
  Start({setpriv, "--reuid=" + id, "--regid=" + id, "--clear-groups", "--inh-caps=-all",
         "/bin/bash", "-c", "shift && ulimit -u 60 && exec " + program + " \"$@\"", "bash"});
  ASSERT_NE(daemon_, nullptr);
  const auto worker = Connect("engine");
  ASSERT_NE(worker, nullptr);
  const auto segment = worker->Allocate("weights", "4MiB", 7);
  ASSERT_THAT(segment, IsOk());
  ASSERT_TRUE(Sleep().ok());

  const std::vector<UniqueFd> silent = Silent(80);
  std::vector<UniqueFd> sessions;
  Status refused;
  for (int i = 0; i < 80 && refused.ok(); ++i) {
    auto socket = net::ConnectUnix(daemon_->worker_socket());
    ASSERT_THAT(socket, IsOk());
    ASSERT_THAT(net::SendFrame(socket->get(), static_cast<uint16_t>(wire::Type::kHello), 0,
                               wire::Encode(wire::Hello())),
                IsOk());
    const auto frame = net::ReceiveFrame(socket->get());
    ASSERT_THAT(frame, IsOk());
    const auto reply = wire::Decode<wire::HelloReply>(frame->payload);
    ASSERT_THAT(reply, IsOk());
    refused = reply->status;
    if (refused.ok()) sessions.push_back(*std::move(socket));
  }
  EXPECT_THAT(refused, HasReason("THREADS_EXHAUSTED"));
  EXPECT_THAT(worker->Ask("wake"), HasReason("THREADS_EXHAUSTED"));
  EXPECT_THAT(daemon_->Usage(), HasReason("THREADS_EXHAUSTED"));
  sessions.clear();
  const TimePoint until = Clock::Real().Now() + seconds(20);
  grpc::Status woken;
  while (!(woken = WakeUp()).ok() && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(woken.ok()) << woken.error_message();
  EXPECT_THAT(worker->Ask("check " + *segment + " 7"), IsOk());
  EXPECT_EQ(*daemon_->Stop(), 0);
}

}  // namespace
}  // namespace torpor
