#include "client/fake_daemon.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr seconds kPatience{20};
constexpr char kUuid[] = "fake-device";
constexpr WorkerId kWorker(1);
constexpr char kSecret[] = "ssssssssssssssss";

void Require(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "fake daemon: %s: %s\n", what, status.ToString().c_str());
  std::abort();
}

template <typename T>
T Require(Result<T> result, const char* what) {
  Require(result.status(), what);
  return *std::move(result);
}

TimePoint Patience() { return Clock::Real().Now() + kPatience; }

}  // namespace

FakeDaemon::FakeDaemon() {
  char dir[] = "/tmp/torpor-XXXXXX";
  if (::mkdtemp(dir) == nullptr) std::abort();
  dir_ = dir;
  std::filesystem::create_directory(dir_ + "/" + kUuid);
  path_ = dir_ + "/" + kUuid + "/worker.sock";
  HostDriver::DeviceOptions options;
  options.uuid = kUuid;
  options.total = kTotal;
  options.granularity = kGranularity;
  device_ = Require(HostDriver::CreateDevice(options), "device");
  listener_ = Require(net::ListenUnix(path_, 0600), "listen");
  acceptor_ = std::thread([this] { Accept(); });
}

FakeDaemon::~FakeDaemon() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  Hangup();
  acceptor_.join();
  {
    MutexLock lock(mutex_);
    memory_.clear();
  }
  std::filesystem::remove_all(dir_);
}

void FakeDaemon::Accept() {
  for (;;) {
    Result<UniqueFd> socket = net::AcceptUnix(listener_.get());
    if (!socket.ok()) return;
    Serve(*std::move(socket));
  }
}

void FakeDaemon::Serve(UniqueFd socket) {
  const Result<net::Frame> first = net::ReceiveFrame(socket.get());
  if (!first.ok()) return;
  {
    MutexLock lock(mutex_);
    ++requests_[wire::Type::kHello];
    while (hold_hellos_) connected_.Wait(mutex_);
  }
  if (Dies(wire::Type::kHello, true)) return;
  wire::HelloReply reply;
  reply.worker = kWorker;
  reply.secret = kSecret;
  reply.device_kind = device_->device().kind;
  reply.device_uuid = device_->device().uuid;
  reply.device_total = device_->device().total;
  reply.granularity = kGranularity;
  reply.arena_size = kArena;
  const wire::Hello hello = Require(wire::Decode<wire::Hello>(first->payload), "hello");
  {
    MutexLock lock(mutex_);
    reply.status = TakeHello(hello, reply);
  }
  const bool dies = Dies(wire::Type::kHello, false);
  // A worker that does not wait for the answer is the test's doing.
  const Status sent = net::SendFrame(socket.get(), wire::Answer(wire::Type::kHello), first->id,
                                     wire::Encode(reply));
  if (!sent.ok() || !reply.status.ok() || dies) return;
  auto channel = std::make_shared<wire::Channel>(std::move(socket), "WORKER_GONE");
  {
    MutexLock lock(mutex_);
    channel_ = channel;
    ++hellos_;
    connected_.NotifyAll();
  }
  (void)channel->Run(*this);
  MutexLock lock(mutex_);
  channel_ = nullptr;
}

Status FakeDaemon::TakeHello(const wire::Hello& hello, wire::HelloReply& reply) {
  if (!hello.device_uuid.empty() && hello.device_uuid != kUuid) {
    return FailedPrecondition("WRONG_DEVICE", "another device")
        .With("daemon_device", kUuid)
        .With("worker_device", hello.device_uuid);
  }
  TORPOR_RETURN_IF_ERROR(refusal_);
  hello_ = hello;
  quiesce_ = hello.quiesce;
  reply.reconnect_grace_ms = grace_.count();
  if (hello.session == WorkerId()) {
    segments_.clear();
    return Status::Ok();
  }
  if (hello.session != kWorker || hello.secret != kSecret) {
    return NotFound("UNKNOWN_SESSION", "that was another one");
  }
  asleep_revision_ = 0;
  sleep_endpoint_.clear();
  const std::set<SegmentId> named(hello.segments.begin(), hello.segments.end());
  for (const SegmentId segment : named) {
    if (segments_.count(segment) == 0) reply.lost.push_back(segment);
  }
  std::set<SegmentId> had;  // also those that were not yet, or no longer, segments
  for (const auto& [id, memory] : memory_) had.insert(memory.segment);
  for (const SegmentId segment : had) {
    if (named.count(segment) == 0) DropSegment(segment);
  }
  return Status::Ok();
}

bool FakeDaemon::Dies(wire::Type type, bool before) {
  MutexLock lock(mutex_);
  if (die_at_ != std::make_pair(type, before)) return false;
  die_at_.reset();
  return true;
}

std::shared_ptr<wire::Channel> FakeDaemon::channel() {
  MutexLock lock(mutex_);
  while (channel_ == nullptr) connected_.Wait(mutex_);
  return channel_;
}

void FakeDaemon::Hangup() {
  MutexLock lock(mutex_);
  if (channel_ != nullptr) channel_->End(Unavailable("TEST", "the test hangs up"));
}

void FakeDaemon::Disappear() {
  Require(::rename(path_.c_str(), (path_ + ".away").c_str()) == 0 ? Status::Ok()
                                                                  : ErrnoStatus(errno, "rename"),
          "disappear");
  Hangup();
}

void FakeDaemon::Appear() {
  Require(::rename((path_ + ".away").c_str(), path_.c_str()) == 0 ? Status::Ok()
                                                                  : ErrnoStatus(errno, "rename"),
          "appear");
}

void FakeDaemon::Restart() {
  const size_t before = hellos();
  Hangup();
  AwaitHellos(before + 1);
}

void FakeDaemon::DieAt(wire::Type type, bool before) {
  MutexLock lock(mutex_);
  die_at_ = {type, before};
}

void FakeDaemon::StopAt(wire::Type type) {
  MutexLock lock(mutex_);
  stop_at_ = type;
}

void FakeDaemon::SetGrace(milliseconds grace) {
  MutexLock lock(mutex_);
  grace_ = grace;
}

void FakeDaemon::RefuseHellos(const Status& refusal) {
  MutexLock lock(mutex_);
  refusal_ = refusal;
}

void FakeDaemon::HoldHellos(bool hold) {
  MutexLock lock(mutex_);
  hold_hellos_ = hold;
  connected_.NotifyAll();
}

void FakeDaemon::ShareNextExtent() {
  MutexLock lock(mutex_);
  share_next_ = true;
}

void FakeDaemon::Lose(const std::string& tag) {
  MutexLock lock(mutex_);
  std::set<SegmentId> lost;
  for (const auto& [id, memory] : memory_) {
    if (memory.tag == tag) lost.insert(memory.segment);
  }
  for (const SegmentId segment : lost) DropSegment(segment);
}

Status FakeDaemon::UnmapAnywhere(OperationId operation, const std::vector<wire::Extent>& extents) {
  return WaitStatus(Require(channel()->Start(wire::Type::kUnmap, wire::Encode(wire::UnmapRequest{
                                                                     operation, "", extents})),
                            "unmap"));
}

size_t FakeDaemon::hellos() {
  MutexLock lock(mutex_);
  return hellos_;
}

void FakeDaemon::AwaitHellos(size_t count) {
  MutexLock lock(mutex_);
  while (hellos_ < count) connected_.Wait(mutex_);
}

size_t FakeDaemon::requests(wire::Type type) {
  MutexLock lock(mutex_);
  return requests_[type];
}

template <typename Reply>
void FakeDaemon::Answer(const net::Frame& request, const Reply& reply,
                        const std::vector<int>& fds) {
  if (mute_) return;
  (void)channel()->Answer(request.type, request.id, reply, fds);
}

template <typename Message, typename Keep>
void FakeDaemon::Take(const net::Frame& request, Keep keep) {
  const Message message = Require(wire::Decode<Message>(request.payload), "decode");
  MutexLock lock(mutex_);
  keep(message);
}

void FakeDaemon::OnRequest(net::Frame request) {
  const auto type = static_cast<wire::Type>(request.type);
  bool stops = false;
  {
    MutexLock lock(mutex_);
    ++requests_[type];
    stops = stop_at_ == type;
    if (stops) stop_at_.reset();
  }
  if (Dies(type, true)) return Hangup();
  if (stops) {
    return Answer(request, wire::StatusReply{Unavailable("DAEMON_STOPPING", "the test says so")});
  }
  mute_ = Dies(type, false);
  Obey(request);
  if (mute_.exchange(false)) Hangup();
}

void FakeDaemon::Obey(const net::Frame& request) {
  switch (static_cast<wire::Type>(request.type)) {
    case wire::Type::kAllocate:
      return OnAllocate(request);
    case wire::Type::kAllocated:
      Take<wire::Allocated>(request, [this](const auto& message) REQUIRES(mutex_) {
        last_allocated_ = message.status;
        if (!message.status.ok()) return DropSegment(message.segment);
        segments_.insert(message.segment);
      });
      return Answer(request, wire::StatusReply{});
    case wire::Type::kFree: {
      const auto message = Require(wire::Decode<wire::Free>(request.payload), "decode");
      wire::FreeReply reply;
      {
        MutexLock lock(mutex_);
        if (segments_.erase(message.segment) == 0) {
          reply.status = NotFound("UNKNOWN_SEGMENT", "no such segment");
        }
        reply.asleep = free_says_asleep_;
        for (const auto& [id, memory] : memory_) {
          if (!reply.status.ok()) break;
          if (free_names_extents_ && memory.segment == message.segment) {
            reply.unmap.push_back(memory.extent);
          }
        }
      }
      return Answer(request, reply);
    }
    case wire::Type::kFreed:
      Take<wire::Freed>(
          request, [this](const auto& message) REQUIRES(mutex_) { DropSegment(message.segment); });
      return Answer(request, wire::StatusReply{});
    case wire::Type::kSetQuiesce:
      Take<wire::SetQuiesce>(
          request, [this](const auto& message) REQUIRES(mutex_) { quiesce_ = message.quiesce; });
      return Answer(request, wire::StatusReply{});
    case wire::Type::kSetSleepEndpoint:
      Take<wire::SetSleepEndpoint>(request, [this](const auto& message) REQUIRES(mutex_) {
        sleep_endpoint_ = message.endpoint;
      });
      return Answer(request, wire::StatusReply{});
    case wire::Type::kReport:
      Take<wire::Report>(request,
                         [this](const auto& message) REQUIRES(mutex_) { report_ = message; });
      return Answer(request, wire::StatusReply{});
    case wire::Type::kUsage: {
      wire::UsageReply reply;
      reply.device_total = kTotal;
      reply.tags.push_back({"weights", 1, MiB(1), Bytes(0), Bytes(0)});
      reply.tags.push_back({"kv_cache", 2, MiB(2), Bytes(0), Bytes(0)});
      return Answer(request, reply);
    }
    case wire::Type::kSleep:
      Take<wire::Sleep>(request,
                        [this](const auto& message) REQUIRES(mutex_) { last_sleep_ = message; });
      return Answer(request, wire::SleepReply{Status::Ok(), MiB(1), MiB(2), MiB(3)});
    case wire::Type::kWakeUp:
      Take<wire::WakeUp>(request,
                         [this](const auto& message) REQUIRES(mutex_) { last_wake_up_ = message; });
      return Answer(request, wire::SleepReply{Status::Ok(), MiB(4), MiB(5), MiB(6)});
    default:
      return Answer(request, wire::StatusReply{Internal("TEST", "the fake daemon cannot do that")});
  }
}

void FakeDaemon::OnAllocate(const net::Frame& request) {
  const auto message = Require(wire::Decode<wire::Allocate>(request.payload), "decode");
  wire::AllocateReply reply;
  std::vector<int> fds;
  if (message.size < Bytes(0) || message.size > kTotal) {
    reply.status = ResourceExhausted("DEVICE_MEMORY_EXHAUSTED", "too much")
                       .With("requested_bytes", message.size.value());
    return Answer(request, reply);
  }
  {
    MutexLock lock(mutex_);
    reply.segment = SegmentId(++last_id_);
    reply.size = RoundUp(message.size, kGranularity);
    Bytes& end = arena_ends_[message.tag];
    const bool shares = std::exchange(share_next_, false);
    reply.offset = other_half_.value_or(end);
    const Bytes needed = other_half_ ? Bytes(0) : reply.size * (shares ? 2 : 1);
    other_half_.reset();
    if (shares) other_half_ = end + reply.size;
    for (Bytes done{}; done < needed;) {
      const ExtentId id(++last_id_);
      Memory memory;
      memory.tag = message.tag;
      memory.segment = reply.segment;
      memory.extent = {id, end, std::min(extent_size_, needed - done)};
      FillMemory(memory);
      reply.extents.push_back(memory.extent);
      fds.push_back(memory.fd.get());
      done += memory.extent.size;
      end += memory.extent.size;
      memory_.emplace(id, std::move(memory));
    }
  }
  Answer(request, reply, fds);
}

void FakeDaemon::FillMemory(Memory& memory) {
  memory.allocation = Require(PhysicalAllocation::Create(*device_, memory.extent.size), "create");
  memory.fd = Require(memory.allocation->Export(), "export");
}

void FakeDaemon::DropSegment(SegmentId segment) {
  segments_.erase(segment);
  for (auto entry = memory_.begin(); entry != memory_.end();) {
    entry = entry->second.segment == segment ? memory_.erase(entry) : std::next(entry);
  }
}

void FakeDaemon::DropMemory(const std::string& tag) {
  MutexLock lock(mutex_);
  for (auto& [id, memory] : memory_) {
    if (memory.tag != tag) continue;
    memory.allocation = nullptr;
    memory.fd.Reset();
  }
}

void FakeDaemon::RenewMemory(const std::string& tag) {
  MutexLock lock(mutex_);
  for (auto& [id, memory] : memory_) {
    if (memory.tag == tag) FillMemory(memory);
  }
}

Bytes FakeDaemon::DeviceFree() { return Require(device_->GetMemoryInfo(), "memory info").free; }

wire::Channel::CallPtr FakeDaemon::StartQuiesce(OperationId operation) {
  return Require(
      channel()->Start(wire::Type::kQuiesce, wire::Encode(wire::QuiesceRequest{operation, false})),
      "quiesce");
}

wire::Channel::CallPtr FakeDaemon::StartUnmap(OperationId operation, const std::string& tag) {
  return Require(channel()->Start(wire::Type::kUnmap,
                                  wire::Encode(wire::UnmapRequest{operation, tag, Extents(tag)})),
                 "unmap");
}

Status FakeDaemon::WaitStatus(const wire::Channel::CallPtr& call) {
  const auto reply = channel()->WaitFor<wire::StatusReply>(call, Patience());
  return reply.ok() ? reply->status : reply.status();
}

Status FakeDaemon::Unmap(OperationId operation, const std::string& tag) {
  return WaitStatus(StartUnmap(operation, tag));
}

Status FakeDaemon::Map(OperationId operation, const std::string& tag) {
  const std::vector<wire::Extent> extents = Extents(tag);
  std::vector<int> fds;
  {
    MutexLock lock(mutex_);
    for (const wire::Extent& extent : extents) fds.push_back(memory_.at(extent.id).fd.get());
  }
  return WaitStatus(
      Require(channel()->Start(wire::Type::kMap,
                               wire::Encode(wire::MapRequest{operation, tag, extents}), fds),
              "map"));
}

Status FakeDaemon::Resume(OperationId operation, const std::vector<std::string>& asleep) {
  const wire::AsleepTags tags{++asleep_revision_, asleep};
  return WaitStatus(Require(
      channel()->Start(wire::Type::kResume, wire::Encode(wire::ResumeRequest{operation, tags})),
      "resume"));
}

Result<std::vector<ExtentId>> FakeDaemon::Cancel(OperationId operation) {
  TORPOR_ASSIGN_OR_RETURN(wire::CancelReply reply,
                          channel()->Ask<wire::CancelReply>(
                              wire::Type::kCancel, wire::CancelRequest{operation}, Patience()));
  TORPOR_RETURN_IF_ERROR(reply.status);
  return std::move(reply.mapped);
}

std::vector<wire::Extent> FakeDaemon::Extents(const std::string& tag) {
  MutexLock lock(mutex_);
  std::vector<wire::Extent> extents;
  for (const auto& [id, memory] : memory_) {
    if (memory.tag == tag) extents.push_back(memory.extent);
  }
  return extents;
}

size_t FakeDaemon::ExtentCount() {
  MutexLock lock(mutex_);
  return memory_.size();
}

wire::Hello FakeDaemon::hello() {
  MutexLock lock(mutex_);
  return hello_;
}
wire::Quiesce FakeDaemon::quiesce() {
  MutexLock lock(mutex_);
  return quiesce_;
}
std::string FakeDaemon::sleep_endpoint() {
  MutexLock lock(mutex_);
  return sleep_endpoint_;
}
wire::Report FakeDaemon::report() {
  MutexLock lock(mutex_);
  return report_;
}
Status FakeDaemon::last_allocated() {
  MutexLock lock(mutex_);
  return last_allocated_;
}
wire::Sleep FakeDaemon::last_sleep() {
  MutexLock lock(mutex_);
  return last_sleep_;
}
wire::WakeUp FakeDaemon::last_wake_up() {
  MutexLock lock(mutex_);
  return last_wake_up_;
}

}  // namespace torpor::client
