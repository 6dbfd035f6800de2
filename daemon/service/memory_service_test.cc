#include "daemon/service/memory_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/admission/reservation.h"
#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

// A server on a Unix socket with a core on host memory behind it, and a client of it.
class MemoryServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/torpor.XXXXXX";
    ASSERT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    HostDriver::DeviceOptions device;
    device.uuid = "host-0";
    device.total = MiB(64);
    auto driver = HostDriver::CreateDevice(device);
    ASSERT_TRUE(driver.ok()) << driver.status().ToString();
    driver_ = std::make_unique<FaultDriver>(*std::move(driver));
    Core::Options options;
    options.worker_socket = dir_ + "/worker.sock";
    options.host_pool = MiB(32);
    options.safety_reserve = MiB(4);
    auto core = Core::Create(*driver_, keeper_, clock_, options);
    ASSERT_TRUE(core.ok()) << core.status().ToString();
    core_ = *std::move(core);
    service_ = std::make_unique<MemoryServiceImpl>(*core_, clock_, seconds(5));
    const std::string target = "unix:" + dir_ + "/control.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target, grpc::InsecureServerCredentials());
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ =
        v1::MemoryService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    server_.reset();
    service_.reset();
    core_.reset();
    std::filesystem::remove_all(dir_);
  }

  static google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
    google::rpc::Status rpc;
    google::rpc::ErrorInfo info;
    EXPECT_TRUE(rpc.ParseFromString(status.error_details()));
    EXPECT_EQ(rpc.code(), status.error_code());
    EXPECT_EQ(rpc.details_size(), 1);
    if (rpc.details_size() == 1) {
      EXPECT_TRUE(rpc.details(0).UnpackTo(&info));
    }
    EXPECT_EQ(info.domain(), "torpor");
    return info;
  }

  grpc::Status Reserve(int64_t bytes, int64_t ttl, v1::ReserveResponse* response) {
    grpc::ClientContext context;
    v1::ReserveRequest request;
    request.set_name("model");
    request.add_parts()->set_name("weights");
    request.mutable_parts(0)->set_device_bytes(bytes);
    request.mutable_ttl()->set_seconds(ttl);
    return stub_->Reserve(&context, request, response);
  }
  grpc::Status Release(const std::string& id, v1::ReleaseResponse* response) {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.set_reservation_id(id);
    return stub_->Release(&context, request, response);
  }
  v1::UsageResponse Usage() {
    grpc::ClientContext context;
    v1::UsageResponse response;
    const grpc::Status status = stub_->Usage(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Usage that is not waited for.
  struct Pending {
    grpc::ClientContext context;
    v1::UsageRequest request;
    v1::UsageResponse response;
    std::promise<grpc::Status> answer;
  };
  std::shared_ptr<Pending> StartUsage() {
    auto pending = std::make_shared<Pending>();
    stub_->async()->Usage(
        &pending->context, &pending->request, &pending->response,
        [pending](const grpc::Status& status) { pending->answer.set_value(status); });
    return pending;
  }
  void WaitForCalls(int calls) {
    while (service_->calls() < calls) std::this_thread::sleep_for(milliseconds(1));
  }
  std::string UsageReason() {
    grpc::ClientContext context;
    v1::UsageResponse response;
    return InfoOf(stub_->Usage(&context, {}, &response)).reason();
  }

  std::string dir_;
  ManualClock clock_;
  InProcessKeeper keeper_;
  std::unique_ptr<FaultDriver> driver_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<MemoryServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

TEST_F(MemoryServiceTest, UsageAddsUp) {
  const v1::UsageResponse usage = Usage();
  const v1::DeviceUsage& device = usage.device();
  EXPECT_EQ(device.uuid(), "host-0");
  EXPECT_EQ(device.driver(), "host");
  EXPECT_EQ(device.total_bytes(), MiB(64).value());
  EXPECT_EQ(device.total_bytes(), device.free_bytes() + device.resident_bytes() +
                                      device.context_bytes() + device.other_bytes());
  EXPECT_EQ(device.available_bytes(), MiB(60).value());
  EXPECT_EQ(usage.host_pool().budget_bytes(), MiB(32).value());
  EXPECT_EQ(usage.workers_size(), 0);
  EXPECT_FALSE(usage.version().empty());
}

TEST_F(MemoryServiceTest, ReservesAndReleases) {
  v1::ReserveResponse reserved;
  ASSERT_TRUE(Reserve(MiB(40).value(), 30, &reserved).ok());
  EXPECT_EQ(reserved.budget().requested_bytes(), MiB(40).value());
  EXPECT_EQ(reserved.budget().available_bytes(), MiB(60).value());
  const auto expires = std::chrono::seconds(reserved.expire_time().seconds());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_GT(expires, now + std::chrono::seconds(25));
  EXPECT_LT(expires, now + std::chrono::seconds(35));

  v1::UsageResponse usage = Usage();
  EXPECT_EQ(usage.device().promised_bytes(), MiB(40).value());
  ASSERT_EQ(usage.reservations_size(), 1);
  EXPECT_EQ(usage.reservations(0).id(), reserved.reservation_id());

  v1::ReserveResponse refused;
  const grpc::Status status = Reserve(MiB(40).value(), 30, &refused);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const google::rpc::ErrorInfo info = InfoOf(status);
  EXPECT_EQ(info.reason(), "DEVICE_BUDGET_EXHAUSTED");
  EXPECT_EQ(info.metadata().at("requested_bytes"), std::to_string(MiB(40).value()));
  EXPECT_EQ(info.metadata().at("available_bytes"), std::to_string(MiB(20).value()));

  v1::ReleaseResponse released;
  ASSERT_TRUE(Release(reserved.reservation_id(), &released).ok());
  EXPECT_EQ(released.device_bytes(), MiB(40).value());
  EXPECT_EQ(Usage().device().promised_bytes(), 0);
  EXPECT_EQ(InfoOf(Release(reserved.reservation_id(), &released)).reason(), "RESERVATION_RELEASED");
  EXPECT_EQ(InfoOf(Release("r-77", &released)).reason(), "UNKNOWN_RESERVATION");
}

TEST_F(MemoryServiceTest, UsageStaysReadable) {
  v1::ReserveRequest request;
  request.set_name(std::string(63, 'n'));
  request.mutable_ttl()->set_seconds(60);
  request.set_host_bytes(1);
  for (size_t i = 0; i < kMaxReservationParts; ++i) {
    request.add_parts()->set_name(std::string(63, 'p'));
  }
  const auto reserve = [&] {
    grpc::ClientContext context;
    v1::ReserveResponse response;
    return stub_->Reserve(&context, request, &response);
  };
  for (size_t i = 0; i < kMaxReservations; ++i) ASSERT_TRUE(reserve().ok());
  const grpc::Status refused = reserve();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(InfoOf(refused).reason(), "TOO_MANY_RESERVATIONS");
  // By a client that sets no limit of its own.
  EXPECT_EQ(Usage().reservations_size(), static_cast<int>(kMaxReservations));
}

TEST_F(MemoryServiceTest, LargeRequestsDoNotFillTheLog) {
  const std::string name(1'000'000, 'n');
  for (int i = 0; i < 75; ++i) {
    const std::string id = std::to_string(i);
    grpc::ClientContext sleep_context;
    v1::SleepRequest sleep;
    sleep.set_level(1);
    sleep.mutable_selector()->add_workers(name);
    sleep.set_request_id("sleep-" + id);
    v1::SleepResponse slept;
    ASSERT_EQ(InfoOf(stub_->Sleep(&sleep_context, sleep, &slept)).reason(), "UNKNOWN_WORKER");
    grpc::ClientContext reserve_context;
    v1::ReserveRequest reserve;
    reserve.set_name(name);
    reserve.mutable_ttl()->set_seconds(60);
    reserve.set_host_bytes(1);
    reserve.set_request_id("reserve-" + id);
    v1::ReserveResponse reserved;
    ASSERT_EQ(InfoOf(stub_->Reserve(&reserve_context, reserve, &reserved)).reason(),
              "BAD_RESERVATION");
    // Nothing came of it, so the id is free.
    reserve.set_name("job");
    grpc::ClientContext again_context;
    ASSERT_TRUE(stub_->Reserve(&again_context, reserve, &reserved).ok());
  }
}

TEST_F(MemoryServiceTest, AReservationExpires) {
  v1::ReserveResponse reserved;
  ASSERT_TRUE(Reserve(MiB(40).value(), 30, &reserved).ok());
  clock_.Advance(seconds(31));
  EXPECT_EQ(Usage().device().promised_bytes(), 0);
  v1::ReleaseResponse released;
  const grpc::Status status = Release(reserved.reservation_id(), &released);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(InfoOf(status).reason(), "RESERVATION_EXPIRED");
}

TEST_F(MemoryServiceTest, BadRequestsHaveEachTheirReason) {
  struct Case {
    const char* reason;
    grpc::StatusCode code;
    v1::SleepRequest request;
  };
  std::vector<Case> cases;
  const auto add = [&](const char* reason, grpc::StatusCode code) -> v1::SleepRequest& {
    cases.push_back({reason, code, {}});
    return cases.back().request;
  };
  const auto bad = grpc::StatusCode::INVALID_ARGUMENT;
  add("EMPTY_SELECTOR", bad).set_level(1);
  v1::SleepRequest* request = &add("CONTRADICTORY_SELECTOR", bad);
  request->set_level(1);
  request->mutable_selector()->set_all(true);
  request->mutable_selector()->add_tags("weights");
  request = &add("UNKNOWN_WORKER", grpc::StatusCode::NOT_FOUND);
  request->set_level(1);
  request->mutable_selector()->add_workers("nobody");
  request = &add("NOTHING_SELECTED", grpc::StatusCode::NOT_FOUND);
  request->set_level(1);
  request->mutable_selector()->add_tags("weights");
  request = &add("BAD_TAG", bad);
  request->set_level(1);
  request->mutable_selector()->add_tags("no tag");
  request = &add("BAD_LEVEL", bad);
  request->set_level(3);
  request->mutable_selector()->set_all(true);
  request = &add("POLICY_MISSING", bad);
  request->mutable_selector()->set_all(true);
  request = &add("LEVEL_AND_POLICIES", bad);
  request->set_level(1);
  (*request->mutable_policies())["weights"] = v1::POLICY_OFFLOAD;
  request->mutable_selector()->set_all(true);
  request = &add("BAD_POLICY", bad);
  (*request->mutable_policies())["weights"] = v1::POLICY_UNSPECIFIED;
  request->mutable_selector()->set_all(true);
  for (const Case& one : cases) {
    grpc::ClientContext context;
    v1::SleepResponse response;
    const grpc::Status status = stub_->Sleep(&context, one.request, &response);
    EXPECT_EQ(status.error_code(), one.code) << one.reason;
    EXPECT_EQ(InfoOf(status).reason(), one.reason);
  }
}

TEST_F(MemoryServiceTest, WakeUpNamesTheReservation) {
  grpc::ClientContext context;
  v1::WakeUpRequest request;
  request.mutable_selector()->set_all(true);
  request.set_reservation_id("r-77");
  v1::WakeUpResponse response;
  EXPECT_EQ(InfoOf(stub_->WakeUp(&context, request, &response)).reason(), "UNKNOWN_RESERVATION");
}

TEST_F(MemoryServiceTest, BadReservations) {
  v1::ReserveResponse response;
  EXPECT_EQ(InfoOf(Reserve(-1, 30, &response)).reason(), "BAD_SIZE");
  EXPECT_EQ(InfoOf(Reserve(4096, -5, &response)).reason(), "BAD_TTL");
  EXPECT_EQ(InfoOf(Reserve(4096, int64_t{31} * 86400, &response)).reason(), "BAD_TTL");
  EXPECT_EQ(InfoOf(Reserve(0, 30, &response)).reason(), "BAD_RESERVATION");
}

TEST_F(MemoryServiceTest, AnErrorOfTheDriverArrives) {
  driver_->FailNth(CallKind::kGetMemoryInfo, 1, Internal("CUDA_ERROR_UNKNOWN", "out of luck"));
  EXPECT_EQ(UsageReason(), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(Usage().device().uuid(), "host-0");
}

TEST_F(MemoryServiceTest, RefusesMoreCallsThanItTakes) {
  std::vector<std::shared_ptr<Pending>> running;
  for (int i = 0; i < MemoryServiceImpl::kMaxThreads; ++i) {
    driver_->StopAt(CallKind::kGetMemoryInfo, i + 1);
  }
  running.reserve(MemoryServiceImpl::kMaxThreads);
  for (int i = 0; i < MemoryServiceImpl::kMaxThreads; ++i) running.push_back(StartUsage());
  WaitForCalls(MemoryServiceImpl::kMaxThreads);
  EXPECT_EQ(UsageReason(), "TOO_MANY_CALLS");
  driver_->Continue();
  for (const auto& call : running) EXPECT_TRUE(call->answer.get_future().get().ok());
  EXPECT_EQ(Usage().device().uuid(), "host-0");
}

TEST_F(MemoryServiceTest, DrainsCallsUnderWayAndRefusesNewOnes) {
  driver_->StopAt(CallKind::kGetMemoryInfo, 1);
  const auto running = StartUsage();
  WaitForCalls(1);
  EXPECT_FALSE(service_->Drain(Clock::Real().Now() + milliseconds(20)));
  EXPECT_EQ(UsageReason(), "DAEMON_STOPPING");
  driver_->Continue();
  EXPECT_TRUE(service_->Drain(Clock::Real().Now() + seconds(60)));
  EXPECT_TRUE(running->answer.get_future().get().ok());
}

TEST_F(MemoryServiceTest, ManyCallsAtOnce) {
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 50; ++call) {
        v1::ReserveResponse reserved;
        v1::ReleaseResponse released;
        ASSERT_TRUE(Reserve(MiB(2).value(), 30, &reserved).ok());
        ASSERT_TRUE(Release(reserved.reservation_id(), &released).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Usage().device().promised_bytes(), 0);
}

}  // namespace
}  // namespace torpor
