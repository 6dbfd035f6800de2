// Whose connections those of the control socket are, and how many there may be.

#include <sys/socket.h>

#include <random>
#include <thread>

#include "lib/base/units.h"
#include "tests/harness/child_process.h"
#include "tests/security/access_fixture.h"

namespace torpor {
namespace {

// May do a little: those who may do nothing have fewer connections.
const User kGuest = {61100, 61100};

class ConnectionsTest : public AccessTest {
 protected:
  void SetUp() override {
    AccessTest::SetUp();
    WriteFile(kFile + std::string("grant { role: WORKER gid: 61100 }\n"));
  }
  // The uid that the daemon has seen, as its refusal says.
  std::string SeenBy(v1::MemoryService::Stub& stub) {
    v1::UpgradeResponse response;
    const grpc::Status refused = stub.Upgrade(Context().get(), {}, &response);
    EXPECT_EQ(ReasonOf(refused), "ACCESS_DENIED") << refused.error_message();
    return DetailOf(refused, "uid");
  }
  // On a connection of its own.
  std::string UsageBy(const User& user) {
    const auto stub = StubAs(user, daemon_->control_socket());
    if (stub == nullptr) return "no connection";
    v1::UsageResponse response;
    return Outcome(stub->Usage(Context().get(), {}, &response));
  }
};

// Connections end, with calls under way, and others take their descriptors' numbers.
TEST_F(ConnectionsTest, NoCallIsTakenForAnothersWhenConnectionsComeAndGo) {
  StartDaemon();
  std::mt19937 random(1);
  struct Client {
    User user;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::MemoryService::Stub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> watch;
  };
  std::vector<Client> clients(8);
  for (int step = 0; step < 400; ++step) {
    Client& client = clients[random() % clients.size()];
    // The stream is still under way: the channel goes with its last call.
    if (client.context != nullptr) client.context->TryCancel();
    client = Client();
    client.user = {61100 + static_cast<uid_t>(random() % 50), 61100};
    const bool reader = random() % 2 == 0;
    if (reader) client.user = kReader;
    client.channel = ChannelAs(client.user, daemon_->control_socket());
    ASSERT_NE(client.channel, nullptr);
    client.stub = v1::MemoryService::NewStub(client.channel);
    EXPECT_EQ(SeenBy(*client.stub), std::to_string(client.user.uid));
    if (reader) {
      client.context = Context();
      client.watch = client.stub->Watch(client.context.get(), {});
      v1::WatchResponse response;
      EXPECT_TRUE(client.watch->Read(&response));
    }
    Client& other = clients[random() % clients.size()];
    if (other.stub != nullptr) {
      EXPECT_EQ(SeenBy(*other.stub), std::to_string(other.user.uid));
    }
  }
  for (Client& client : clients) {
    if (client.context != nullptr) client.context->TryCancel();
  }
}

// The call has been sent, and its caller is gone, before the daemon has looked at it: the next one
// with the number is another.
TEST_F(ConnectionsTest, ACallWhoseConnectionIsGoneIsNobodyElses) {
  StartDaemon();
  for (int round = 0; round < 50; ++round) {
    std::vector<std::unique_ptr<v1::MemoryService::Stub>> gone;
    std::vector<std::thread> calls;
    for (int i = 0; i < 4; ++i) {
      // Its calls are on their way when it ends.
      UniqueFd fd = ConnectAs(kOperator, daemon_->control_socket());
      ASSERT_TRUE(fd.valid());
      const UniqueFd end(::dup(fd.get()));
      ASSERT_EQ(::fcntl(fd.get(), F_SETFL, O_NONBLOCK), 0);
      gone.push_back(
          v1::MemoryService::NewStub(grpc::CreateInsecureChannelFromFd("torpord", fd.Release())));
      calls.emplace_back([stub = gone.back().get()] {
        v1::ReserveRequest request;
        request.set_name("waits");
        request.add_parts()->set_name("weights");
        request.mutable_parts(0)->set_device_bytes(GiB(1).value() - MiB(8).value());
        request.mutable_ttl()->set_seconds(1);
        request.set_wait(true);
        v1::ReserveResponse response;
        (void)stub->Reserve(Context().get(), request, &response);
      });
      ::shutdown(end.get(), SHUT_RDWR);
    }
    for (int i = 0; i < 4; ++i) {
      const auto stub = StubAs(kGuest, daemon_->control_socket());
      ASSERT_NE(stub, nullptr);
      EXPECT_EQ(SeenBy(*stub), std::to_string(kGuest.uid));
    }
    for (std::thread& call : calls) call.join();
  }
}

TEST_F(ConnectionsTest, ThoseWhoSayNothingKeepNobodyOut) {
  auto daemon = DaemonProcess::Start(dir_.path(), Flags(),
                                     {"/bin/bash", "-c", "ulimit -n 512 && exec \"$@\"", "bash"});
  ASSERT_THAT(daemon, IsOk());
  daemon_ = *std::move(daemon);
  // One that has been here before them, and is under way.
  const auto context = Context();
  const auto watch = As(kOperator).Watch(context.get(), {});
  v1::WatchResponse response;
  ASSERT_TRUE(watch->Read(&response));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 600; ++i) {
    UniqueFd fd = ConnectAs(kGuest, daemon_->control_socket());
    if (fd.valid()) silent.push_back(std::move(fd));
    if (i % 100 == 99) {
      EXPECT_EQ(UsageBy(kOperator), "OK") << "behind " << i << " of them";
    }
  }
  EXPECT_EQ(silent.size(), 600U);
  EXPECT_EQ(UsageBy(kReader), "OK");
  EXPECT_NE(daemon_->log().find("a connection of the control socket closed: one of "),
            std::string::npos);
  // So it is with those who have called, once: the user with the most loses.
  std::vector<std::unique_ptr<v1::MemoryService::Stub>> idle;
  for (int i = 0; i < 60; ++i) {
    idle.push_back(StubAs(kGuest, daemon_->control_socket()));
    if (idle.back() != nullptr) (void)SeenBy(*idle.back());
  }
  EXPECT_EQ(UsageBy(kOperator), "OK");
  v1::UsageResponse usage;
  EXPECT_EQ(Outcome(As(kOperator).Usage(Context().get(), {}, &usage)), "OK")
      << "on the connection that was there before them";
  context->TryCancel();
  EXPECT_EQ(*daemon_->Stop(), 0);
  // 32 of them stay.
  EXPECT_GT(Told(daemon_->log(), "a connection of the control socket closed: one of "), 600)
      << daemon_->log();
}

TEST_F(ConnectionsTest, WithoutDescriptorsItWaitsForBetterTimes) {
  StartDaemon();
  EXPECT_EQ(UsageBy(kOperator), "OK");
  const std::string pid = std::to_string(daemon_->process().pid());
  const auto limit = [&](const std::string& files) {
    const auto set = RunProgram({"/usr/bin/prlimit", "--pid=" + pid, "--nofile=" + files + ":"});
    return set.ok() && set->exit_status == 0;
  };
  if (!limit("3")) GTEST_SKIP() << "needs prlimit";
  // Nothing more can be accepted: those who come are turned away, or wait.
  std::vector<UniqueFd> waiting;
  waiting.reserve(20);
  for (int i = 0; i < 20; ++i) waiting.push_back(ConnectAs(kOperator, daemon_->control_socket()));
  std::this_thread::sleep_for(milliseconds(300));
  ASSERT_TRUE(limit("1024"));
  EXPECT_EQ(UsageBy(kOperator), "OK");
  EXPECT_EQ(*daemon_->Stop(), 0);
}

}  // namespace
}  // namespace torpor
