// Watch over a real gRPC server.

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "daemon/service/memory_service.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lib/base/clock.h"
#include "lib/base/units.h"
#include "lib/cuda/host_driver.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {
namespace {

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::Status rpc;
  google::rpc::ErrorInfo info;
  rpc.ParseFromString(status.error_details());
  for (const auto& detail : rpc.details()) detail.UnpackTo(&info);
  return info.reason();
}

// One call of Watch.
class Watching {
 public:
  Watching(v1::MemoryService::Stub& stub, const v1::WatchRequest& request) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    reader_ = stub.Watch(&context_, request);
  }
  // A response without an event at the end of the stream.
  v1::WatchResponse Next() {
    v1::WatchResponse response;
    if (!reader_->Read(&response)) response.Clear();
    return response;
  }
  // The device bytes of the next response, which has a reservation.
  int64_t NextNumber() {
    const v1::WatchResponse response = Next();
    EXPECT_TRUE(response.has_reservation()) << response.ShortDebugString();
    cursor_ = response.cursor();
    return response.reservation().device_bytes();
  }
  const std::string& cursor() const { return cursor_; }
  grpc::Status Finish() {
    v1::WatchResponse rest;
    while (reader_->Read(&rest)) {
    }
    return reader_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader_;
  std::string cursor_;
};

class WatchTest : public testing::Test {
 protected:
  // Without it gRPC shuts down behind each test and may wait ten seconds for a poller of its own.
  static void SetUpTestSuite() { ::grpc_init(); }
  static void TearDownTestSuite() { ::grpc_shutdown(); }
  void SetUp() override {
    char dir[] = "/tmp/torpor.XXXXXX";
    ASSERT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    HostDriver::DeviceOptions device;
    device.uuid = "host-0";
    device.total = MiB(64);
    auto driver = HostDriver::CreateDevice(device);
    ASSERT_TRUE(driver.ok()) << driver.status().ToString();
    driver_ = *std::move(driver);
    Start(1024);
  }
  void TearDown() override {
    Stop();
    std::filesystem::remove_all(dir_);
  }
  void Start(size_t event_capacity) {
    Core::Options options;
    options.worker_socket = dir_ + "/worker.sock";
    options.host_pool = MiB(32);
    options.event_capacity = event_capacity;
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
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::MemoryService::NewStub(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    service_.reset();
    core_.reset();
  }

  // Its number is in `device`.
  void Publish(int64_t number, const std::string& name = "job") {
    ReservationEvent event;
    event.id = "r-1";
    event.name = name;
    event.device = Bytes(number);
    core_->events().Publish(std::move(event));
  }
  void PublishOf(WorkerId worker, const std::string& name) {
    SessionEvent event;
    event.worker = worker;
    event.worker_name = name;
    core_->events().Publish(std::move(event));
  }
  std::unique_ptr<Watching> Watch(const v1::WatchRequest& request = {}) {
    return std::make_unique<Watching>(*stub_, request);
  }
  std::unique_ptr<Watching> WatchFrom(const std::string& cursor) {
    v1::WatchRequest request;
    request.set_cursor(cursor);
    return Watch(request);
  }
  // With its first response read.
  std::unique_ptr<Watching> WatchFromNow(const v1::WatchRequest& request = {}) {
    auto watching = Watch(request);
    const v1::WatchResponse first = watching->Next();
    EXPECT_NE(first.cursor(), "");
    EXPECT_EQ(first.event_case(), v1::WatchResponse::EVENT_NOT_SET);
    return watching;
  }
  void WaitForWatchers(size_t count) {
    const TimePoint until = Clock::Real().Now() + seconds(60);
    while (service_->watchers() != count && Clock::Real().Now() < until) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(service_->watchers(), count);
  }

  std::string dir_;
  ManualClock clock_;
  InProcessKeeper keeper_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<MemoryServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

TEST_F(WatchTest, EventsInOrderFromNowOn) {
  Publish(1);
  const auto watching = WatchFromNow();
  for (int i = 2; i <= 200; ++i) Publish(i);
  for (int i = 2; i <= 200; ++i) ASSERT_EQ(watching->NextNumber(), i);
  Publish(201);
  const v1::WatchResponse response = watching->Next();
  EXPECT_EQ(response.reservation().device_bytes(), 201);
  EXPECT_EQ(response.reservation().reservation_id(), "r-1");
  EXPECT_EQ(response.reservation().name(), "job");
  EXPECT_EQ(response.reservation().change(), v1::RESERVATION_CHANGE_MADE);
  const auto age = std::chrono::system_clock::now().time_since_epoch() -
                   std::chrono::seconds(response.time().seconds());
  EXPECT_LT(age, std::chrono::seconds(120));
}

TEST_F(WatchTest, GoesOnFromACursor) {
  auto watching = WatchFromNow();
  for (int i = 1; i <= 5; ++i) Publish(i);
  for (int i = 1; i <= 3; ++i) ASSERT_EQ(watching->NextNumber(), i);
  const std::string cursor = watching->cursor();
  watching->Cancel();
  EXPECT_EQ(watching->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitForWatchers(0);
  Publish(6);
  watching = WatchFrom(cursor);
  EXPECT_EQ(watching->Next().cursor(), cursor);
  for (int i = 4; i <= 6; ++i) ASSERT_EQ(watching->NextNumber(), i);
}

TEST_F(WatchTest, ACursorTooOldTellsWhatIsLost) {
  const auto watching = WatchFromNow();
  Publish(1);
  ASSERT_EQ(watching->NextNumber(), 1);
  for (int i = 2; i <= 1035; ++i) Publish(i);
  const auto again = WatchFrom(watching->cursor());
  const v1::WatchResponse first = again->Next();
  ASSERT_TRUE(first.has_lost()) << first.ShortDebugString();
  EXPECT_EQ(first.lost().events(), 10);
  EXPECT_FALSE(first.lost().daemon_restarted());
  EXPECT_EQ(again->NextNumber(), 12);
}

TEST_F(WatchTest, ARestartLosesEventsAndTheNewOnesFollow) {
  auto watching = WatchFromNow();
  Publish(1);
  ASSERT_EQ(watching->NextNumber(), 1);
  const std::string cursor = watching->cursor();
  watching->Cancel();
  Stop();
  Start(8);
  for (int i = 1; i <= 3; ++i) Publish(100 + i);
  watching = WatchFrom(cursor);
  v1::WatchResponse first = watching->Next();
  ASSERT_TRUE(first.has_lost()) << first.ShortDebugString();
  EXPECT_EQ(first.lost().events(), -1);
  EXPECT_TRUE(first.lost().daemon_restarted());
  EXPECT_EQ(watching->NextNumber(), 101);
  for (int i = 4; i <= 20; ++i) Publish(100 + i);
  watching = WatchFrom(cursor);
  EXPECT_TRUE(watching->Next().lost().daemon_restarted());
  EXPECT_EQ(watching->NextNumber(), 113);
}

TEST_F(WatchTest, FiltersByKind) {
  v1::WatchRequest request;
  request.add_kinds(v1::EVENT_KIND_SESSION);
  request.add_kinds(v1::EVENT_KIND_PRESSURE);
  const auto watching = WatchFromNow(request);
  Publish(1);
  PublishOf(WorkerId(1), "model");
  Publish(2);
  core_->events().Publish(PressureEvent{true, false, MiB(1), MiB(2), Bytes(0)});
  EXPECT_EQ(watching->Next().session().worker_id(), "w-1");
  EXPECT_TRUE(watching->Next().pressure().low());
}

TEST_F(WatchTest, FiltersByWorker) {
  v1::WatchRequest request;
  request.add_workers("w-2");
  request.add_workers("model");
  const auto watching = WatchFromNow(request);
  Publish(1);
  PublishOf(WorkerId(1), "other");
  PublishOf(WorkerId(2), "another");
  PublishOf(WorkerId(3), "model");
  EXPECT_EQ(watching->Next().session().worker_id(), "w-2");
  EXPECT_EQ(watching->Next().session().worker_id(), "w-3");
}

TEST_F(WatchTest, TheCursorOfAQuietWatchDoesNotGetOld) {
  v1::WatchRequest request;
  request.add_kinds(v1::EVENT_KIND_SESSION);
  const auto watching = WatchFromNow(request);
  for (int i = 1; i <= 1024; ++i) Publish(i);
  const v1::WatchResponse response = watching->Next();
  EXPECT_EQ(response.event_case(), v1::WatchResponse::EVENT_NOT_SET);
  for (int i = 1; i <= 1000; ++i) Publish(i);
  EXPECT_FALSE(WatchFrom(response.cursor())->Next().has_lost());
}

TEST_F(WatchTest, AReaderThatDoesNotReadLosesEventsAndIsTold) {
  constexpr int kEvents = 6000;
  const std::string large(4096, 'x');
  const auto slow = WatchFromNow();
  const auto quick = WatchFromNow();
  std::thread reader([&] {
    // Reads all of them, so that the slow one is nobody else's loss.
    int64_t seen = 0;
    int64_t lost = 0;
    while (seen + lost < kEvents) {
      const v1::WatchResponse response = quick->Next();
      lost += response.lost().events();
      if (response.has_reservation()) ++seen;
      ASSERT_NE(response.event_case(), v1::WatchResponse::EVENT_NOT_SET);
    }
  });
  for (int i = 1; i <= kEvents; ++i) Publish(i, large);
  reader.join();
  int64_t number = 0;
  int64_t lost = 0;
  while (number < kEvents) {
    const v1::WatchResponse response = slow->Next();
    if (response.has_lost()) {
      lost += response.lost().events();
      number += response.lost().events();
      continue;
    }
    ASSERT_EQ(response.reservation().device_bytes(), ++number);
  }
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, kEvents);
}

TEST_F(WatchTest, BadRequestsHaveEachTheirReason) {
  const std::string boot = core_->events().boot_id();
  for (const std::string& cursor :
       {std::string("x"), boot, boot + ":", boot + ":x", boot + ":-1", boot + ":1x", boot + ":1",
        std::string("XYZ3456789abcdef:0"), boot + ":99999999999999999999999"}) {
    const grpc::Status status = WatchFrom(cursor)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << cursor;
    EXPECT_EQ(ReasonOf(status), "BAD_CURSOR") << cursor;
  }
  v1::WatchRequest request;
  request.add_kinds(v1::EVENT_KIND_UNSPECIFIED);
  EXPECT_EQ(ReasonOf(Watch(request)->Finish()), "BAD_EVENT_KIND");
  request.set_kinds(0, static_cast<v1::EventKind>(99));
  EXPECT_EQ(ReasonOf(Watch(request)->Finish()), "BAD_EVENT_KIND");
  request.Clear();
  request.add_workers("");
  EXPECT_EQ(ReasonOf(Watch(request)->Finish()), "BAD_WORKER_NAME");
  WaitForWatchers(0);
}

TEST_F(WatchTest, ManyWatchersButNotMore) {
  std::vector<std::unique_ptr<Watching>> all;
  for (size_t i = 0; i < WatchHub::kMaxWatchers; ++i) all.push_back(WatchFromNow());
  const grpc::Status refused = Watch()->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_WATCHERS");
  for (int i = 1; i <= 10; ++i) Publish(i);
  for (const auto& watching : all) {
    for (int i = 1; i <= 10; ++i) ASSERT_EQ(watching->NextNumber(), i);
  }
  for (const auto& watching : all) watching->Cancel();
  WaitForWatchers(0);
  Publish(11);
  const auto another = WatchFromNow();
  Publish(12);
  EXPECT_EQ(another->NextNumber(), 12);
}

TEST_F(WatchTest, ADisconnectedWatcherIsForgotten) {
  auto watching = WatchFromNow();
  stub_.reset();
  watching.reset();
  WaitForWatchers(0);
}

TEST_F(WatchTest, WatchersComeAndGoWhileEventsCome) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto watching = WatchFromNow();
        if ((i + t) % 2 == 0) {
          EXPECT_GT(watching->NextNumber(), 0);
        }
        watching->Cancel();
      }
    });
  }
  std::atomic<bool> done = false;
  std::thread publisher([&] {
    for (int64_t i = 1; !done; ++i) {
      Publish(i);
      if (i % 64 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  publisher.join();
  WaitForWatchers(0);
}

TEST_F(WatchTest, AStoppingDaemonTellsTheRestFirst) {
  const auto watching = WatchFromNow();
  const auto deaf = Watch();
  for (int i = 1; i <= 50; ++i) Publish(i);
  EXPECT_TRUE(service_->Drain(Clock::Real().Now() + seconds(60)));
  for (int i = 1; i <= 50; ++i) ASSERT_EQ(watching->NextNumber(), i);
  const grpc::Status status = watching->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "DAEMON_STOPPING");
  EXPECT_EQ(ReasonOf(Watch()->Finish()), "DAEMON_STOPPING");
}

TEST_F(WatchTest, AReaderThatDoesNotReadDoesNotStopTheDaemonFromStopping) {
  const auto deaf = WatchFromNow();
  for (int i = 1; i <= 3000; ++i) Publish(i, std::string(4096, 'x'));
  EXPECT_TRUE(service_->Drain(Clock::Real().Now() + seconds(60)));
  server_->Shutdown(std::chrono::system_clock::now() + milliseconds(100));
  WaitForWatchers(0);
}

}  // namespace
}  // namespace torpor
