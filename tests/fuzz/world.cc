#include "tests/fuzz/world.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"
#include "tests/fuzz/call.h"
#include "tests/fuzz/fill.h"
#include "tests/fuzz/require.h"

namespace torpor::fuzz {
namespace {

constexpr Bytes kPage = KiB(4);
constexpr Bytes kDevice = kPage * 64;
constexpr Bytes kHostPool = KiB(256);
constexpr Duration kMoment = milliseconds(2);
constexpr Duration kLong = seconds(60);  // nothing takes so long unless it hangs
constexpr size_t kMostSegments = 8;
constexpr size_t kMostCalls = 8;

TimePoint In(Duration duration) { return Clock::Real().Now() + duration; }

const google::protobuf::ServiceDescriptor* Service() {
  return v1::UsageRequest::descriptor()->file()->service(0);
}

std::vector<std::string> Tags() { return {"weights", "kv_cache", "a"}; }

#define REQUIRE_BOOKS(condition)                                                      \
  do {                                                                                \
    if (!(condition)) std::fprintf(stderr, "%s\n", usage.ShortDebugString().c_str()); \
    REQUIRE(condition);                                                               \
  } while (false)

uint64_t* Word(DeviceAddress address, Bytes offset) {
  return reinterpret_cast<uint64_t*>(address.value() + offset.size());
}

// What does not add up; null if all does.
const char* WrongBook(const v1::UsageResponse& usage) {
  const v1::DeviceUsage& device = usage.device();
  const v1::HostPoolUsage& pool = usage.host_pool();
  int64_t resident = 0;
  int64_t host = 0;
  for (const v1::WorkerUsage& worker : usage.workers()) {
    if (worker.rollback_pending()) return "a roll back is pending";
    for (const v1::TagUsage& tag : worker.tags()) {
      if (tag.moving_segments() != 0) return "segments are moving";
      resident += tag.resident_bytes() + tag.stranded_bytes();
      host += tag.host_bytes();
    }
  }
  if (device.resident_bytes() != resident) return "resident bytes";
  if (pool.used_bytes() != host) return "used bytes of the pool";
  if (device.total_bytes() != device.free_bytes() + device.resident_bytes() +
                                  device.context_bytes() + device.other_bytes()) {
    return "the device's bytes";
  }
  if (device.other_bytes() != 0) return "bytes of others";
  if (device.overcommitted_bytes() != 0) return "overcommitted bytes";
  if (device.promised_bytes() < 0 || device.available_bytes() < 0 ||
      device.promised_bytes() + device.available_bytes() > device.free_bytes()) {
    return "promised bytes";
  }
  if (pool.promised_bytes() < 0 ||
      pool.used_bytes() + pool.promised_bytes() > pool.budget_bytes()) {
    return "promised bytes of the pool";
  }
  return nullptr;
}

}  // namespace

World::World() : workers_(2) {
  char name[] = "/tmp/torpor-fuzz-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  directory_ = name;
  auto device = HostDriver::CreateDevice({"host-fuzz", kDevice, kPage});
  REQUIRE(device.ok());
  device_ = *std::move(device);
  driver_ = std::make_unique<FaultDriver>(*device_);
  Core::Options options;
  options.worker_socket = directory_ + "/worker.sock";
  options.host_pool = kHostPool;
  options.safety_reserve = kPage * 2;
  options.worker_deadline = kMoment;
  auto core = Core::Create(*driver_, keeper_, clock_, options);
  REQUIRE(core.ok());
  core_ = *std::move(core);
  service_ = std::make_unique<MemoryServiceImpl>(*core_, clock_, seconds(5));
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  REQUIRE(server_ != nullptr);
  channel_ = server_->InProcessChannel({});
  stub_ = std::make_unique<Call::Stub>(channel_);
  names_ = Tags();
  names_.insert(names_.end(), {"w-1", "w-2", "engine", "r-1", "no tag"});
  fixed_names_ = names_.size();
  Input plain(nullptr, 0);
  for (Worker& worker : workers_) Connect(worker, plain);
}

World::~World() {
  raw_.Reset();
  workers_.clear();
  stub_.reset();
  channel_.reset();
  server_->Shutdown();
  server_.reset();
  service_.reset();
  core_.reset();
  ::unlink((directory_ + "/worker.sock").c_str());
  ::rmdir(directory_.c_str());
}

void World::Learn(const std::string& name) {
  if (!name.empty() && names_.size() < fixed_names_ + 16) names_.push_back(name);
}

void World::CallService(Input& input) {
  if (calls_.size() >= kMostCalls) return;
  auto call = std::make_unique<Call>(
      Service()->method(static_cast<int>(input.Below(Service()->method_count()))));
  const uint8_t how = input.Byte();
  Fill(input, names_, call->request());
  switch (how % 8) {
    case 0:
      call->context().set_deadline(std::chrono::system_clock::now());
      break;
    case 1:
      call->context().set_deadline(std::chrono::system_clock::now() + kMoment);
      break;
    default:
      break;
  }
  call->Start(*stub_);
  if (how / 8 % 4 == 0 || !call->Wait(In(kMoment))) {
    calls_.push_back(std::move(call));
  } else if (const auto* made = dynamic_cast<const v1::ReserveResponse*>(&call->response())) {
    Learn(made->reservation_id());
  }
}

void World::CancelCall(Input& input) {
  if (!calls_.empty()) calls_[input.Below(calls_.size())]->Cancel();
}

void World::Connect(Worker& worker, Input& input) {
  worker.session.reset();
  worker.segments.clear();
  client::Session::Options options;
  options.socket_path = directory_ + "/worker.sock";
  options.quiesce = wire::Quiesce::kSynchronize;
  worker.changed = !input.empty();
  if (worker.changed) {
    options.name = input.Of(names_);
    options.quiesce = static_cast<wire::Quiesce>(input.Below(5));
    if (input.OneIn(2)) options.reservation = input.Of(names_);
  }
  auto session = client::Session::Connect(
      options, [&](const wire::HelloReply& hello) -> Result<std::shared_ptr<Driver>> {
        DeviceInfo info;
        info.kind = hello.device_kind;
        info.uuid = hello.device_uuid;
        info.total = hello.device_total;
        info.granularity = hello.granularity;
        TORPOR_ASSIGN_OR_RETURN(auto driver, HostDriver::OpenDevice(info));
        worker.driver = std::make_shared<FaultDriver>(std::unique_ptr<Driver>(std::move(driver)));
        return std::shared_ptr<Driver>(worker.driver);
      });
  if (!session.ok()) return;
  worker.session = *std::move(session);
  Learn(WorkerName(worker.session->hello().worker));
}

void World::Allocate(Worker& worker, Input& input) {
  if (worker.segments.size() >= kMostSegments) return;
  Segment segment;
  segment.tag = input.OneIn(8) ? input.Of(names_) : input.Of(Tags());
  segment.size = input.OneIn(16) ? Bytes(static_cast<int64_t>(input.Word()))
                                 : kPage * static_cast<int64_t>(1 + input.Below(12));
  const auto address = worker.session->Allocate(segment.tag, segment.size);
  if (!address.ok()) return;
  segment.address = *address;
  const auto info = worker.session->Find(*address);
  REQUIRE(info.ok() && info->size >= segment.size);
  segment.size = info->size;
  worker.segments.push_back(segment);
}

// What was written is there, or everything is zero after a discard.
void World::UseMemory(Worker& worker) {
  for (Segment& segment : worker.segments) {
    if (!worker.session->WorkBegin({segment.tag}, Duration::zero()).ok()) continue;
    const bool cleared = *Word(segment.address, Bytes(0)) == 0;
    for (Bytes at{}; at < segment.size; at += kPage) {
      uint64_t& word = *Word(segment.address, at);
      REQUIRE(segment.seed == 0 || word == (cleared ? 0 : segment.seed + at.size()));
    }
    segment.seed = ++seed_ << 32;
    for (Bytes at{}; at < segment.size; at += kPage) {
      *Word(segment.address, at) = segment.seed + at.size();
    }
    REQUIRE(worker.session->WorkEnd().ok());
  }
}

void World::UseWorker(Input& input) {
  Worker& worker = workers_[input.Below(workers_.size())];
  if (worker.session == nullptr) return Connect(worker, input);
  switch (input.Below(16)) {
    default:
      Allocate(worker, input);
      UseMemory(worker);
      break;
    case 6:
    case 7:
      if (!worker.segments.empty()) {
        const size_t index = input.Below(worker.segments.size());
        (void)worker.session->Free(worker.segments[index].address);
        worker.segments.erase(worker.segments.begin() + static_cast<ptrdiff_t>(index));
      }
      break;
    case 8:
    case 9: {
      wire::Sleep sleep;
      sleep.level = static_cast<int32_t>(input.Below(4));
      if (input.OneIn(3)) sleep.tags.push_back(input.Of(names_));
      if (input.OneIn(3)) {
        sleep.level = 0;
        sleep.policies.push_back({input.Of(names_), static_cast<wire::Policy>(input.Below(4))});
      }
      sleep.force = input.OneIn(4);
      sleep.timeout_ms = 100;
      (void)worker.session->Sleep(sleep);
      break;
    }
    case 10:
    case 11: {
      wire::WakeUp wake;
      if (input.OneIn(3)) wake.tags.push_back(input.Of(names_));
      if (input.OneIn(3)) wake.reservation = input.Of(names_);
      wake.timeout_ms = 20;
      (void)worker.session->WakeUp(wake);
      break;
    }
    case 12:
      UseMemory(worker);
      break;
    case 13:
      (void)worker.session->ReportUsage(Bytes(static_cast<int64_t>(input.Word())), kPage);
      break;
    case 14:
      worker.changed = true;
      (void)worker.session->SetQuiesce(static_cast<wire::Quiesce>(input.Below(5)));
      break;
    case 15:
      Connect(worker, input);
      break;
  }
}

void World::OpenRaw() {
  auto socket = net::ConnectUnix(directory_ + "/worker.sock");
  REQUIRE(socket.ok());
  raw_ = *std::move(socket);
  wire::Hello hello;
  hello.quiesce = wire::Quiesce::kSynchronize;
  (void)net::SendFrame(raw_.get(), static_cast<uint16_t>(wire::Type::kHello), ++raw_id_,
                       wire::Encode(hello));
  REQUIRE(net::ReceiveFrame(raw_.get()).ok());  // from here on Usage shows it until it is gone
}

void World::SendFrame(Input& input) {
  if (!raw_.valid()) OpenRaw();
  static const std::vector<wire::Type> types = {
      wire::Type::kAllocate,        wire::Type::kAllocated,  wire::Type::kFree,
      wire::Type::kFreed,           wire::Type::kSleep,      wire::Type::kWakeUp,
      wire::Type::kUsage,           wire::Type::kSetQuiesce, wire::Type::kReport,
      wire::Type::kSetSleepEndpoint};
  uint16_t type = static_cast<uint16_t>(input.Of(types));
  std::string payload;
  const SegmentId segment(input.Below(32));
  switch (input.Below(8)) {
    case 0:
      payload = input.String(input.Byte());
      break;
    case 1:
      type = static_cast<uint16_t>(input.Word());
      break;
    case 2:
      type = static_cast<uint16_t>(wire::Type::kAllocated);
      payload = wire::Encode(wire::Allocated{segment, Status()});
      break;
    case 3:
      type = static_cast<uint16_t>(wire::Type::kFree);
      payload = wire::Encode(wire::Free{segment});
      break;
    case 4:
      type = static_cast<uint16_t>(wire::Type::kSleep);
      payload = wire::Encode(wire::Sleep{{}, 1, {}, false, 10});
      break;
    case 5:
      type = static_cast<uint16_t>(wire::Type::kSetSleepEndpoint);
      payload = wire::Encode(wire::SetSleepEndpoint{input.String(input.Byte())});
      break;
    default:
      type = static_cast<uint16_t>(wire::Type::kAllocate);
      payload = wire::Encode(
          wire::Allocate{input.Of(names_), kPage * static_cast<int64_t>(input.Below(8))});
      break;
  }
  if (!net::SendFrame(raw_.get(), type, ++raw_id_, payload).ok()) return raw_.Reset();
  // One answer, or a question, which gets an answer of some kind.
  pollfd ready{raw_.get(), POLLIN, 0};
  if (::poll(&ready, 1, 5) != 1) return;
  const auto frame = net::ReceiveFrame(raw_.get());
  if (!frame.ok()) return raw_.Reset();
  if (frame->type % 2 == 0 && input.OneIn(2)) {
    const Status status = input.OneIn(2) ? Status() : Internal("FUZZ", "no");
    (void)net::SendFrame(raw_.get(), static_cast<uint16_t>(frame->type + 1), frame->id,
                         wire::Encode(wire::StatusReply{status}));
  }
}

void World::FailDriver(Input& input) {
  static const std::vector<CallKind> kinds = {
      CallKind::kGetMemoryInfo, CallKind::kCreate,       CallKind::kExport,
      CallKind::kImport,        CallKind::kMap,          CallKind::kSetAccess,
      CallKind::kCopyToHost,    CallKind::kCopyToDevice, CallKind::kClear,
      CallKind::kRecordEvent,   CallKind::kSynchronize};
  FaultDriver* driver = driver_.get();
  const size_t which = input.Below(1 + workers_.size());
  if (which > 0) driver = workers_[which - 1].driver.get();
  if (driver == nullptr) return;
  driver->FailNth(input.Of(kinds), 1 + static_cast<int64_t>(input.Below(4)),
                  Internal("DRIVER_ERROR", "a fault"));
}

void World::AdvanceClock(Input& input) {
  clock_.Advance(milliseconds(int64_t{1} << input.Below(28)));
}

v1::UsageResponse World::Usage() {
  Call call(Service()->FindMethodByName("Usage"));
  call.Start(*stub_);
  REQUIRE(call.Wait(In(kLong)));
  REQUIRE(call.status().ok());
  return dynamic_cast<const v1::UsageResponse&>(call.response());
}

void World::WaitForRest() {
  const auto sessions = std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.session != nullptr;
  });
  const TimePoint until = In(kLong);
  for (;;) {
    // Memory whose Free met a fault follows at the next end of work.
    const bool settled = std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
      return worker.session == nullptr ||
             (worker.session->WorkBegin({"nothing"}, Duration::zero()).ok() &&
              worker.session->WorkEnd().ok());
    });
    if (settled && service_->calls() == 0) {
      const auto usage = core_->Usage();
      REQUIRE(usage.ok());
      const bool busy =
          std::any_of(usage->workers.begin(), usage->workers.end(),
                      [](const WorkerStats& worker) { return worker.operation.has_value(); });
      if (!busy && usage->workers.size() == static_cast<size_t>(sessions)) return;
    }
    REQUIRE(Clock::Real().Now() < until);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

v1::UsageResponse World::Check() {
  raw_.Reset();
  driver_->ClearFaults();
  for (Worker& worker : workers_) {
    if (worker.driver != nullptr) worker.driver->ClearFaults();
  }
  for (const auto& call : calls_) call->Cancel();
  for (const auto& call : calls_) REQUIRE(call->Wait(In(kLong)));
  calls_.clear();
  WaitForRest();
  // A call whose caller gave up at once may reach the service only now, and be done all the same.
  v1::UsageResponse usage = Usage();
  for (const TimePoint until = In(kLong);
       WrongBook(usage) != nullptr && Clock::Real().Now() < until; usage = Usage()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (const char* const wrong = WrongBook(usage); wrong != nullptr) {
    std::fprintf(stderr, "%s: %s\n", wrong, usage.ShortDebugString().c_str());
    REQUIRE(wrong == nullptr);
  }
  for (Worker& worker : workers_) {
    if (worker.session != nullptr) UseMemory(worker);
  }
  return usage;
}

void World::Reset() {
  v1::UsageResponse usage = Check();
  for (Worker& worker : workers_) {
    if (worker.session == nullptr) continue;
    for (const Segment& segment : worker.segments) {
      REQUIRE(worker.session->Free(segment.address).ok());
    }
    if (!worker.segments.empty()) usage.mutable_device()->set_resident_bytes(-1);  // as of before
    worker.segments.clear();
  }
  // A call whose caller gave up at once may reach the service only now, and be done all the same.
  const TimePoint until = In(kLong);
  while (usage.reservations_size() > 0 || usage.device().resident_bytes() != 0 ||
         usage.device().promised_bytes() != 0 || usage.host_pool().used_bytes() != 0 ||
         usage.host_pool().promised_bytes() != 0) {
    for (const v1::ReservationUsage& reservation : usage.reservations()) {
      (void)core_->Release(reservation.id());
    }
    usage = Usage();
    if (Clock::Real().Now() >= until) break;
  }
  REQUIRE_BOOKS(usage.device().resident_bytes() == 0);
  REQUIRE_BOOKS(usage.device().promised_bytes() == 0);
  REQUIRE_BOOKS(usage.host_pool().used_bytes() == 0);
  REQUIRE_BOOKS(usage.host_pool().promised_bytes() == 0);
  REQUIRE(keeper_.extents() == 0);
  names_.resize(fixed_names_);
  Input plain(nullptr, 0);
  for (Worker& worker : workers_) {
    if (worker.session == nullptr || worker.changed) Connect(worker, plain);
    worker.changed = false;
    REQUIRE(worker.session != nullptr);
    Learn(WorkerName(worker.session->hello().worker));
  }
  clock_.Advance(std::chrono::hours(24));
}

}  // namespace torpor::fuzz
