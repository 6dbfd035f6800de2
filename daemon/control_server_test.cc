#include "daemon/control_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

#include "daemon/access/peers.h"
#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "daemon/service/memory_service.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "lib/cuda/host_driver.h"
#include "tests/harness/health_stream.h"
#include "tests/harness/temp_dir.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

using testing::HasSubstr;

constexpr char kService[] = "torpor.v1.MemoryService";

class ControlServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = ControlServer::Start(service_, peers_, {dir_.path() + "/control.sock", 0600, {}});
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel("unix:" + dir_.path() + "/control.sock",
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::MemoryService::NewStub(channel_);
  }
  void Serve() {
    auto driver = HostDriver::CreateDevice({"host-0", MiB(64), MiB(2)});
    ASSERT_THAT(driver, IsOk());
    driver_ = *std::move(driver);
    Core::Options options;
    options.worker_socket = dir_.path() + "/worker.sock";
    auto core = Core::Create(*driver_, keeper_, Clock::Real(), options);
    ASSERT_THAT(core, IsOk());
    core_ = *std::move(core);
    service_.Serve(*core_);
    server_->SetHealth(true, true);
  }
  grpc::Status Usage() {
    grpc::ClientContext context;
    v1::UsageResponse response;
    return stub_->Usage(&context, {}, &response);
  }
  grpc::Status Watch() {
    grpc::ClientContext context;
    const auto reader = stub_->Watch(&context, {});
    v1::WatchResponse response;
    if (reader->Read(&response)) context.TryCancel();
    return reader->Finish();
  }

  TempDir dir_;
  access::Peers peers_;
  InProcessKeeper keeper_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Core> core_;
  MemoryServiceImpl service_{Clock::Real(), seconds(5)};
  std::unique_ptr<ControlServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

TEST_F(ControlServerTest, SaysThatItIsStarting) {
  HealthStream health(channel_);
  EXPECT_TRUE(health.Await(Serving::NOT_SERVING));
  EXPECT_EQ(HealthOf(channel_, kService), Serving::NOT_SERVING);
  EXPECT_EQ(HealthOf(channel_, ControlServer::kAliveName), Serving::SERVING);
  for (const grpc::Status& refused : {Usage(), Watch()}) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(refused.error_details(), HasSubstr("DAEMON_STARTING"));
  }
  Serve();
  EXPECT_TRUE(health.Await(Serving::SERVING));
  EXPECT_EQ(HealthOf(channel_, kService), Serving::SERVING);
  EXPECT_TRUE(Usage().ok());
  EXPECT_EQ(Watch().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ControlServerTest, MayEndBeforeItHasServed) {
  HealthStream health(channel_);
  EXPECT_TRUE(health.Await(Serving::NOT_SERVING));
  server_->Shutdown(seconds(1), [] {});
}

TEST_F(ControlServerTest, EachNameIsToldApart) {
  Serve();
  server_->SetHealth(false, true);
  server_->SetProtected(true);
  EXPECT_EQ(HealthOf(channel_), Serving::NOT_SERVING);
  EXPECT_EQ(HealthOf(channel_, kService), Serving::NOT_SERVING);
  EXPECT_EQ(HealthOf(channel_, ControlServer::kAliveName), Serving::SERVING);
  EXPECT_EQ(HealthOf(channel_, ControlServer::kKeeperName), Serving::SERVING);
  EXPECT_EQ(HealthOf(channel_, "nobody"), Serving::UNKNOWN);
}

}  // namespace
}  // namespace torpor
