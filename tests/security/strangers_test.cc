// What those without a role can take from the others: streams, threads, the queue of the socket.

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/health_stream.h"
#include "tests/security/access_fixture.h"

namespace torpor {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::reflection::v1alpha::ServerReflection;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

constexpr size_t kStreams = 1000;

class StrangersTest : public AccessTest {
 protected:
  // Streams, kStreams of them, with what their first answer is.
  template <typename Stream, typename Response>
  struct Opened {
    std::shared_ptr<grpc::Channel> channel;
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<Stream>> streams;  // null: refused
    size_t answered = 0;
    std::map<std::string, size_t> refused;  // by reason

    Opened() = default;
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() {
      for (const auto& context : contexts) context->TryCancel();
      for (const auto& stream : streams) {
        if (stream != nullptr) (void)stream->Finish();
      }
    }
    void Read() {
      for (auto& stream : streams) {
        Response first;
        if (stream->Read(&first)) {
          ++answered;
          continue;
        }
        ++refused[Outcome(stream->Finish())];
        stream.reset();
      }
    }
  };

  using HealthStreams = Opened<grpc::ClientReader<Serving>, Serving>;
  std::unique_ptr<HealthStreams> WatchHealthAs(const User& user) {
    auto opened = std::make_unique<HealthStreams>();
    opened->channel = ChannelAs(user, daemon_->control_socket());
    const auto stub = Health::NewStub(opened->channel);
    for (size_t i = 0; i < kStreams; ++i) {
      opened->contexts.push_back(Context());
      opened->streams.push_back(stub->Watch(opened->contexts.back().get(), HealthCheckRequest()));
    }
    opened->Read();
    return opened;
  }

  using ReflectionStreams =
      Opened<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>,
             ServerReflectionResponse>;
  std::unique_ptr<ReflectionStreams> ReflectAs(const User& user) {
    auto opened = std::make_unique<ReflectionStreams>();
    opened->channel = ChannelAs(user, daemon_->control_socket());
    const auto stub = ServerReflection::NewStub(opened->channel);
    ServerReflectionRequest request;
    request.set_list_services("*");
    for (size_t i = 0; i < kStreams; ++i) {
      opened->contexts.push_back(Context());
      opened->streams.push_back(stub->ServerReflectionInfo(opened->contexts.back().get()));
      (void)opened->streams.back()->Write(request);
    }
    opened->Read();
    return opened;
  }

  int Threads() const {
    std::ifstream file("/proc/" + std::to_string(daemon_->process().pid()) + "/status");
    const std::string status{std::istreambuf_iterator<char>(file), {}};
    return std::stoi(status.substr(status.find("Threads:") + 8));
  }
  std::string UsageBy(const User& user) {
    const auto stub = StubAs(user, daemon_->control_socket());
    if (stub == nullptr) return "no connection";
    v1::UsageResponse response;
    return Outcome(stub->Usage(Context().get(), {}, &response));
  }
};

TEST_F(StrangersTest, HaveAFewStreamsOfHealth) {
  StartDaemon();
  const auto strangers = WatchHealthAs(kNobody);
  EXPECT_EQ(strangers->answered, 64U);
  EXPECT_EQ(strangers->refused.at("TOO_MANY_STREAMS"), kStreams - 64);
  // The others have theirs, and probes are answered.
  {
    HealthStream health(ChannelAs(kReader, daemon_->control_socket()));
    EXPECT_TRUE(health.Await(Serving::SERVING));
  }
  EXPECT_EQ(HealthOf(ChannelAs(kNobody, daemon_->control_socket())), Serving::SERVING);
  EXPECT_EQ(UsageBy(kOperator), "OK");
}

TEST_F(StrangersTest, StreamsOfHealthComeBackWhenTheyEnd) {
  StartDaemon();
  for (int i = 0; i < 3; ++i) {
    // What ended a moment ago may not be known yet.
    size_t answered = 0;
    const TimePoint until = Clock::Real().Now() + seconds(60);
    while (answered < 64 && Clock::Real().Now() < until)
      answered = WatchHealthAs(kNobody)->answered;
    EXPECT_EQ(answered, 64U);
  }
  EXPECT_EQ(*daemon_->Stop(), 0);
}

TEST_F(StrangersTest, ReflectionTakesARoleAndNoThreads) {
  StartDaemon();
  (void)UsageBy(kOperator);
  const int before = Threads();
  const auto strangers = ReflectAs(kNobody);
  EXPECT_EQ(strangers->answered, 0U);
  EXPECT_EQ(strangers->refused.at("ACCESS_DENIED"), kStreams);
  const auto readers = ReflectAs(kReader);
  EXPECT_EQ(readers->answered, 256U);
  EXPECT_EQ(readers->refused.at("TOO_MANY_STREAMS"), kStreams - 256);
  EXPECT_LT(Threads(), before + 32) << "gRPC's own come and go";
  EXPECT_EQ(UsageBy(kOperator), "OK");
  EXPECT_EQ(*daemon_->Stop(), 0);
}

// They connect again and again, as fast as they can.
TEST_F(StrangersTest, KeepNobodyOutByConnecting) {
  StartDaemon();
  std::atomic<bool> enough = false;
  std::atomic<size_t> connected = 0;
  std::vector<std::thread> flood;
  flood.reserve(2);
  for (int i = 0; i < 2; ++i) {
    flood.emplace_back([&] {
      if (!BecomeInThread(kNobody)) return;
      while (!enough) connected += ConnectStream(daemon_->control_socket()).valid() ? 1 : 0;
    });
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(UsageBy(kOperator), "OK");
  enough = true;
  for (std::thread& thread : flood) thread.join();
  EXPECT_GT(connected, 1000U);
  EXPECT_NE(daemon_->log().find("without a role"), std::string::npos);
  EXPECT_EQ(*daemon_->Stop(), 0);
}

}  // namespace
}  // namespace torpor
