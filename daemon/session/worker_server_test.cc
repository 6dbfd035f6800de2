#include "daemon/session/worker_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

class Workers final : public WorkerServer::Handler {
 public:
  Result<wire::HelloReply> OnHello(const wire::Hello& hello, const net::PeerCredentials& /*peer*/,
                                   const std::shared_ptr<wire::Channel>& /*channel*/) override {
    if (hello.name == "unwanted") return InvalidArgument("TEST_REFUSES", "");
    wire::HelloReply reply;
    reply.worker = WorkerId(++last);
    return reply;
  }
  void OnRequest(WorkerId /*worker*/, const std::shared_ptr<wire::Channel>& /*channel*/,
                 net::Frame /*request*/) override {}
  void OnGone(WorkerId /*worker*/, const Status& /*why*/) override { ++gone; }

  std::atomic<uint64_t> last = 0;
  std::atomic<int> gone = 0;
};

class WorkerServerTest : public testing::Test {
 protected:
  void Start(const WorkerServer::Limits& limits = {}) {
    auto server = WorkerServer::Start(path_, 0600, workers_, limits);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
  }
  UniqueFd Connect() {
    Result<UniqueFd> socket = net::ConnectUnix(path_);
    EXPECT_THAT(socket, IsOk());
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }
  static Status Reply(const UniqueFd& socket) {
    TORPOR_ASSIGN_OR_RETURN(const net::Frame frame, net::ReceiveFrame(socket.get()));
    TORPOR_ASSIGN_OR_RETURN(const wire::HelloReply reply,
                            wire::Decode<wire::HelloReply>(frame.payload));
    return reply.status;
  }
  static Status Greet(const UniqueFd& socket, const std::string& name = "engine") {
    wire::Hello hello;
    hello.name = name;
    TORPOR_RETURN_IF_ERROR(net::SendFrame(socket.get(), static_cast<uint16_t>(wire::Type::kHello),
                                          0, wire::Encode(hello)));
    return Reply(socket);
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/worker.sock";
  Workers workers_;
  std::unique_ptr<WorkerServer> server_;
};

TEST_F(WorkerServerTest, TakesAsManyWorkersAsItMay) {
  WorkerServer::Limits limits;
  limits.workers = 2;
  Start(limits);
  UniqueFd first = Connect();
  const UniqueFd second = Connect();
  EXPECT_THAT(Greet(first), IsOk());
  EXPECT_THAT(Greet(second), IsOk());
  EXPECT_THAT(Greet(Connect()), HasReason("TOO_MANY_WORKERS"));
  first.Reset();
  const TimePoint until = Clock::Real().Now() + seconds(20);
  Status status;
  UniqueFd third;
  do {
    third = Connect();
    status = Greet(third);
  } while (!status.ok() && Clock::Real().Now() < until);
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(workers_.gone, 1);
}

TEST_F(WorkerServerTest, RefusesWithoutAThread) {
  std::atomic<bool> none = true;
  WorkerServer::Limits limits;
  limits.start_thread = [&](std::function<void()> run) -> Result<std::thread> {
    if (none) return ResourceExhausted("THREADS_EXHAUSTED", "none left");
    return StartThread(std::move(run));
  };
  Start(limits);
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Greet(Connect()), HasReason("THREADS_EXHAUSTED"));
  none = false;
  const UniqueFd worker = Connect();
  EXPECT_THAT(Greet(worker), IsOk());
}

TEST_F(WorkerServerTest, RefusesWhenFewDescriptorsAreLeft) {
  WorkerServer::Limits limits;
  limits.descriptors = int64_t{1} << 40;
  Start(limits);
  EXPECT_THAT(Greet(Connect()), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
}

TEST_F(WorkerServerTest, RefusesWhatIsNoHello) {
  Start();
  const UniqueFd socket = Connect();
  ASSERT_THAT(net::SendFrame(socket.get(), static_cast<uint16_t>(wire::Type::kUsage), 3, ""),
              IsOk());
  EXPECT_THAT(Reply(socket), HasReason("BAD_FRAME"));
  EXPECT_THAT(Greet(Connect(), "unwanted"), HasReason("TEST_REFUSES"));
}

TEST_F(WorkerServerTest, WhoIsRefusedAgainAndAgainIsLoggedOnceInAWhile) {
  Start();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 200; ++i)
    EXPECT_THAT(Greet(Connect(), "unwanted"), HasReason("TEST_REFUSES"));
  server_.reset();
  const std::string written = testing::internal::GetCapturedStderr();
  EXPECT_THAT(written, testing::HasSubstr("connection of pid " + std::to_string(::getpid()) +
                                          ", uid " + std::to_string(::geteuid()) + " refused"));
  EXPECT_LT(std::count(written.begin(), written.end(), '\n'), 100);
}

TEST_F(WorkerServerTest, TheOldestSilentConnectionGivesWay) {
  WorkerServer::Limits limits;
  limits.silent = 3;
  Start(limits);
  std::vector<UniqueFd> silent;
  silent.reserve(10);
  for (int i = 0; i < 10; ++i) silent.push_back(Connect());
  const UniqueFd worker = Connect();
  const TimePoint start = Clock::Real().Now();
  EXPECT_THAT(Greet(worker), IsOk());
  EXPECT_LT(Clock::Real().Now() - start, seconds(4));
  EXPECT_THAT(Reply(silent[0]), HasReason("PEER_SILENT"));
  EXPECT_THAT(Greet(silent[9]), IsOk());
}

TEST_F(WorkerServerTest, SilentConnectionsEndInTime) {
  Start();
  const UniqueFd silent = Connect();
  const TimePoint start = Clock::Real().Now();
  EXPECT_THAT(Reply(silent), HasReason("PEER_SILENT"));
  EXPECT_GE(Clock::Real().Now() - start, milliseconds(4500));
}

TEST_F(WorkerServerTest, StopsAtOnceUnderSilentConnections) {
  Start();
  std::vector<UniqueFd> silent;
  silent.reserve(10);
  for (int i = 0; i < 10; ++i) silent.push_back(Connect());
  const UniqueFd worker = Connect();
  EXPECT_THAT(Greet(worker), IsOk());
  const TimePoint start = Clock::Real().Now();
  server_.reset();
  EXPECT_LT(Clock::Real().Now() - start, seconds(3));
  EXPECT_EQ(workers_.gone, 1);
}

}  // namespace
}  // namespace torpor
