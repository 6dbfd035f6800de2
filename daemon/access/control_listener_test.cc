#include "daemon/access/control_listener.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"
#include "tests/harness/temp_dir.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::access {
namespace {

constexpr Duration kPatience = seconds(60);

template <typename Condition>
bool Await(Condition condition) {
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (!condition()) {
    if (Clock::Real().Now() > until) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

UniqueFd Connect(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// What the kernel calls a socket by, for ever; 0: the descriptor is none.
uint64_t Cookie(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

class ControlListenerTest : public testing::Test {
 protected:
  void Start(ControlListener::Take take, size_t connections = 0) {
    auto listener = ControlListener::Start({path_, 0600, {}, connections}, peers_, std::move(take));
    ASSERT_THAT(listener, IsOk());
    listener_ = *std::move(listener);
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/control.sock";
  Peers peers_;
  std::unique_ptr<ControlListener> listener_;
};

// The service holds its calls until it is told to answer.
class Held final : public v1::MemoryService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Usage(grpc::CallbackServerContext* context, const v1::UsageRequest*,
                                  v1::UsageResponse*) override {
    const std::lock_guard lock(mutex_);
    peer_ = context->peer();
    reactor_ = context->DefaultReactor();
    return reactor_;
  }
  std::string peer() {
    const std::lock_guard lock(mutex_);
    return peer_;
  }
  void Answer() {
    const std::lock_guard lock(mutex_);
    reactor_->Finish(grpc::Status::OK);
  }

 private:
  std::mutex mutex_;
  std::string peer_;
  grpc::ServerUnaryReactor* reactor_ = nullptr;
};

// What Peers rests on.
TEST_F(ControlListenerTest, GrpcKeepsADescriptorAsLongAsACallOfItsConnection) {
  Held service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  std::atomic<int> given = -1;
  Start([&](int fd) {
    given = fd;
    grpc::AddInsecureChannelFromFd(server.get(), fd);
  });
  {
    const auto channel = grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials());
    const auto stub = v1::MemoryService::NewStub(channel);
    grpc::ClientContext context;
    std::thread call([&] {
      v1::UsageResponse response;
      (void)stub->Usage(&context, {}, &response);
    });
    EXPECT_TRUE(Await([&] { return !service.peer().empty(); }));
    EXPECT_EQ(service.peer(), "fd:" + std::to_string(given));
    const auto known = peers_.Find(given);
    ASSERT_TRUE(known.has_value());
    EXPECT_EQ(known->uid, ::getuid());
    EXPECT_EQ(known->pid, ::getpid());
    context.TryCancel();
    call.join();
  }
  // The connection is gone, the call is not.
  const int held = std::stoi(service.peer().substr(3));
  const uint64_t cookie = Cookie(held);
  EXPECT_NE(cookie, 0U);
  EXPECT_TRUE(Await([&] { return listener_->connections() == 0; }));
  std::vector<UniqueFd> others;
  for (int i = 0; i < 20; ++i) {
    others.push_back(Connect(path_));
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(Cookie(held), cookie);
  service.Answer();
  EXPECT_TRUE(Await([&] { return Cookie(held) != cookie; })) << "it keeps it for ever";
  listener_->Stop();
  listener_->EndConnections();
  server->Shutdown();
}

TEST_F(ControlListenerTest, CountsThoseThatAreOpen) {
  std::mutex mutex;
  std::vector<UniqueFd> taken;
  Start(
      [&](int fd) {
        const std::lock_guard lock(mutex);
        taken.emplace_back(fd);
      },
      4);
  std::vector<UniqueFd> ours;
  for (int i = 0; i < 3; ++i) ours.push_back(Connect(path_));
  EXPECT_TRUE(Await([&] { return listener_->connections() == 3; }));
  ours.pop_back();
  EXPECT_TRUE(Await([&] { return listener_->connections() == 2; }));
  // Ended from this side.
  {
    const std::lock_guard lock(mutex);
    ::shutdown(taken[0].get(), SHUT_RDWR);
  }
  EXPECT_TRUE(Await([&] { return listener_->connections() == 1; }));
  for (int i = 0; i < 10; ++i) ours.push_back(Connect(path_));
  EXPECT_TRUE(Await([&] {
    const std::lock_guard lock(mutex);
    return taken.size() == 13;
  }));
  EXPECT_EQ(listener_->connections(), 4U);
  listener_->Stop();
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace torpor::access
