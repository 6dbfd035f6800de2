#include "daemon/control_server.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/access/gate.h"
#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "daemon/service/memory_service.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
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
    auto server = ControlServer::Start(service_, gate_, {dir_.path() + "/control.sock", 0600, {}});
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
  access::Gate gate_;
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

TEST_F(ControlServerTest, WhatHasEndedServingDoesNotBeginAgain) {
  Serve();
  HealthStream health(channel_);
  EXPECT_TRUE(health.Await(Serving::SERVING));
  service_.Drain(Clock::Real().Now());
  std::thread late([&] { server_->SetHealth(true, true); });
  server_->Shutdown(seconds(1), [] {});
  late.join();
  EXPECT_EQ(health.told().back(), Serving::NOT_SERVING);
}

TEST_F(ControlServerTest, AWatchOfHealthIsToldOnceOfEachChange) {
  Serve();
  HealthStream health(channel_, kService);
  HealthStream unknown(channel_, "nobody");
  EXPECT_TRUE(health.Await(Serving::SERVING));
  EXPECT_TRUE(unknown.Await(Serving::SERVICE_UNKNOWN));
  for (int i = 0; i < 3; ++i) server_->SetHealth(true, true);
  server_->SetHealth(false, true);
  EXPECT_TRUE(health.Await(Serving::NOT_SERVING));
  EXPECT_EQ(health.told(),
            (std::vector<Serving::ServingStatus>{Serving::SERVING, Serving::NOT_SERVING}));
  EXPECT_EQ(unknown.told().size(), 1U);
}

template <typename Stub, typename Request, typename Response>
class Asking {
 public:
  explicit Asking(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(channel), stream_(stub_.ServerReflectionInfo(&context_)) {}
  Response Ask(const Request& request) {
    Response response;
    EXPECT_TRUE(stream_->Write(request) && stream_->Read(&response));
    return response;
  }
  grpc::Status Finish() {
    stream_->WritesDone();
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  Stub stub_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
};

namespace reflection = grpc::reflection::v1;
using Reflecting = Asking<reflection::ServerReflection::Stub, reflection::ServerReflectionRequest,
                          reflection::ServerReflectionResponse>;

TEST_F(ControlServerTest, ReflectionHasTheSchema) {
  Reflecting stream(channel_);
  reflection::ServerReflectionRequest request;
  request.set_host("here");
  request.set_list_services("*");
  std::vector<std::string> services;
  const auto listed = stream.Ask(request);
  for (const auto& service : listed.list_services_response().service()) {
    services.push_back(service.name());
  }
  EXPECT_THAT(services, testing::UnorderedElementsAre(kService, "grpc.health.v1.Health",
                                                      "grpc.reflection.v1.ServerReflection",
                                                      "grpc.reflection.v1alpha.ServerReflection"));
  EXPECT_EQ(listed.valid_host(), "here");
  EXPECT_EQ(listed.original_request().list_services(), "*");
  // Each with all that it imports: a client builds it from that alone.
  for (const std::string& service : services) {
    request.set_file_containing_symbol(service);
    google::protobuf::DescriptorPool pool;
    const auto files = stream.Ask(request).file_descriptor_response();
    for (int i = files.file_descriptor_proto_size(); i > 0; --i) {
      google::protobuf::FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(files.file_descriptor_proto(i - 1)));
      EXPECT_NE(pool.BuildFile(file), nullptr) << file.name();
    }
    EXPECT_NE(pool.FindServiceByName(service), nullptr) << service;
  }
  request.set_file_by_filename("torpor/v1/memory_service.proto");
  EXPECT_GT(stream.Ask(request).file_descriptor_response().file_descriptor_proto_size(), 1);
  request.set_all_extension_numbers_of_type("torpor.v1.UsageRequest");
  EXPECT_EQ(stream.Ask(request).all_extension_numbers_response().base_type_name(),
            "torpor.v1.UsageRequest");
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ControlServerTest, ReflectionSaysWhatThereIsNot) {
  Reflecting stream(channel_);
  reflection::ServerReflectionRequest request;
  const auto error = [&] { return stream.Ask(request).error_response(); };
  EXPECT_EQ(error().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_file_containing_symbol("a.b.C");
  EXPECT_EQ(error().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error().error_message(), "there is no symbol a.b.C");
  request.set_file_by_filename("a.proto");
  EXPECT_EQ(error().error_message(), "there is no file a.proto");
  request.mutable_file_containing_extension()->set_containing_type("torpor.v1.UsageRequest");
  EXPECT_EQ(error().error_message(), "there is no extension 0 of torpor.v1.UsageRequest");
  request.set_all_extension_numbers_of_type("a.T");
  EXPECT_EQ(error().error_message(), "there is no type a.T");
  EXPECT_TRUE(stream.Finish().ok());
}

}  // namespace
}  // namespace torpor
