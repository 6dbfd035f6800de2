#include "client/session.h"

#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <map>
#include <utility>

#include "client/arena.h"
#include "client/connection.h"
#include "client/fork_watch.h"
#include "client/operator.h"
#include "client/work_guard.h"
#include "lib/base/mutex.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr seconds kHelloTimeout{30};
// What the daemon gets beyond a caller's own timeout before it counts as silent.
constexpr seconds kAnswerGrace{10};

std::optional<TimePoint> AnswerDeadline(int64_t timeout_ms) {
  // Beyond a year: none, and no overflow.
  if (timeout_ms <= 0 || timeout_ms > int64_t{365} * 24 * 3600 * 1000) return std::nullopt;
  return Clock::Real().Now() + milliseconds(timeout_ms) + kAnswerGrace;
}

Status UnknownAddress(DeviceAddress address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address.value()));
  return NotFound("UNKNOWN_ADDRESS", std::string("no segment at ") + text).With("address", text);
}

// Of a connection that broke before the daemon had answered.
Status Gone(const Status& broken) {
  if (broken.code() != Code::kUnavailable) return broken;
  return Unavailable("DAEMON_GONE", "the daemon ended while a session was opened")
      .With("cause", broken.reason());
}

Result<wire::HelloReply> SayHello(int socket, const Session::Options& options) {
  const wire::Hello hello{options.name, options.device_uuid, options.quiesce, options.reservation};
  if (const Status sent =
          net::SendFrame(socket, static_cast<uint16_t>(wire::Type::kHello), 0, wire::Encode(hello));
      !sent.ok()) {
    return Gone(sent);
  }
  pollfd readable{socket, POLLIN, 0};
  const TimePoint deadline = Clock::Real().Now() + kHelloTimeout;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::Real().Now()).count();
    const int ready = left > 0 ? ::poll(&readable, 1, static_cast<int>(left)) : 0;
    if (ready > 0) break;
    if (ready == 0) {
      return DeadlineExceeded("DAEMON_SILENT", "the daemon has not answered a hello")
          .With("timeout_s", kHelloTimeout.count());
    }
    if (errno != EINTR) return ErrnoStatus(errno, "wait for the daemon");
  }
  const Result<net::Frame> answer = net::ReceiveFrame(socket);
  if (!answer.ok()) return Gone(answer.status());
  if (answer->type != wire::Answer(wire::Type::kHello)) {
    return InvalidArgument("BAD_FRAME", "the daemon's first frame does not answer the hello")
        .With("type", answer->type);
  }
  TORPOR_ASSIGN_OR_RETURN(wire::HelloReply reply, wire::Decode<wire::HelloReply>(answer->payload));
  TORPOR_RETURN_IF_ERROR(reply.status);
  return reply;
}

}  // namespace

class Session::Impl {
 public:
  Impl(const Options& options, wire::HelloReply hello, std::shared_ptr<Driver> driver,
       UniqueFd socket)
      : hello_(std::move(hello)),
        driver_(std::move(driver)),
        arenas_(*driver_, hello_.arena_size),
        connection_(std::move(socket)),
        operator_(*driver_, guard_, hook_, arenas_, connection_),
        quiesce_(options.quiesce) {
    operator_.Start();
    connection_.Start(operator_);
  }

  ~Impl() {
    operator_.Stop();
    (void)driver_->Synchronize();
    arenas_.Clear();
    // Only now: at the end of the stream the daemon takes this worker's memory to be unmapped.
    connection_.Stop();
  }

  Result<DeviceAddress> Allocate(const std::string& tag, Bytes size, int64_t timeout_ms);
  Status CheckMayWait() const;
  Status Free(DeviceAddress address);
  Result<SegmentInfo> Find(DeviceAddress address) const;
  Status WorkBegin(const std::vector<std::string>& tags, std::optional<Duration> timeout);
  Status WorkEnd();
  Status OnPause(PauseHook::Callbacks callbacks);
  Status SetQuiesce(wire::Quiesce quiesce);
  Status SetSleepEndpoint(const std::string& endpoint);
  template <typename Request>
  Result<wire::SleepReply> Operate(wire::Type type, const Request& request);
  Result<wire::UsageReply> Usage();
  Status ReportUsage(Bytes live, Bytes reserved);

  const wire::HelloReply& hello() const { return hello_; }
  Driver& driver() const { return *driver_; }
  bool InCallback() const { return operator_.OnOperatorThread(); }

 private:
  struct Segment {
    SegmentId id;
    std::string tag;
    Bytes size{};
  };
  // Extents of a freed segment that are still mapped here.
  struct Leftover {
    SegmentId segment;
    std::string tag;
    std::vector<wire::Extent> extents;
    bool tell_daemon = true;  // it waits for Freed
  };

  Result<DeviceAddress> MapSegment(const std::string& tag, WithFds<wire::AllocateReply>& reply);
  void Forget(const std::string& tag, const wire::AllocateReply& reply);
  Status FreeSegment(DeviceAddress address, const Segment& segment);
  void Keep(Leftover leftover);
  Status Reclaim();
  Status TellQuiesce(wire::Quiesce quiesce);

  const wire::HelloReply hello_;
  const std::shared_ptr<Driver> driver_;
  WorkGuard guard_;
  PauseHook hook_;
  ArenaSet arenas_;
  Connection connection_;
  Operator operator_;

  mutable Mutex mutex_;
  std::map<DeviceAddress, Segment> segments_ GUARDED_BY(mutex_);
  std::vector<Leftover> leftovers_ GUARDED_BY(mutex_);
  std::atomic<bool> has_leftovers_{false};  // spares WorkEnd the mutex

  Mutex quiesce_mutex_;  // what the daemon is told follows the order of calls
  wire::Quiesce quiesce_ GUARDED_BY(quiesce_mutex_);
};

// Waits for others, who may wait for this thread to leave the work guard or a callback.
Status Session::Impl::CheckMayWait() const {
  if (guard_.HeldByThisThread()) {
    return FailedPrecondition("WORK_GUARD_HELD",
                              "this thread is inside the work guard, which must be empty for that");
  }
  if (InCallback()) {
    return FailedPrecondition("CALLED_FROM_CALLBACK", "a callback cannot wait for an operation");
  }
  return Status::Ok();
}

Result<DeviceAddress> Session::Impl::Allocate(const std::string& tag, Bytes size,
                                              int64_t timeout_ms) {
  if (timeout_ms != 0) TORPOR_RETURN_IF_ERROR(CheckMayWait());
  if (size == Bytes(0)) {
    return InvalidArgument("EMPTY_ALLOCATION", "an allocation of 0 bytes")
        .With("requested_bytes", 0);
  }
  TORPOR_ASSIGN_OR_RETURN(WithFds<wire::AllocateReply> reply,
                          connection_.AskForFds<wire::AllocateReply>(
                              wire::Type::kAllocate, wire::Allocate{tag, size, timeout_ms}));
  TORPOR_RETURN_IF_ERROR(reply.message.status);
  Result<DeviceAddress> address = MapSegment(tag, reply);
  const Result<wire::StatusReply> told = connection_.Ask<wire::StatusReply>(
      wire::Type::kAllocated, wire::Allocated{reply.message.segment, address.status()});
  if (!address.ok()) return address.status();
  const Status accepted = told.ok() ? told->status : told.status();
  if (!accepted.ok()) {
    Forget(tag, reply.message);
    return accepted;
  }
  MutexLock lock(mutex_);
  segments_[*address] = Segment{reply.message.segment, tag, reply.message.size};
  return address;
}

Result<DeviceAddress> Session::Impl::MapSegment(const std::string& tag,
                                                WithFds<wire::AllocateReply>& reply) {
  const wire::AllocateReply& segment = reply.message;
  if (segment.offset < Bytes(0) || segment.size <= Bytes(0) || segment.size > hello_.arena_size ||
      segment.offset > hello_.arena_size - segment.size) {
    return InvalidArgument("BAD_EXTENT", "the segment lies outside its arena")
        .With("offset", segment.offset.value())
        .With("size", segment.size.value());
  }
  TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, arenas_.Get(tag));
  const Status mapped = arena->Map(segment.extents, std::move(reply.fds));
  if (!mapped.ok()) {
    Forget(tag, segment);
    return mapped;
  }
  return arena->address() + segment.offset;
}

// Unmaps a segment that nobody has seen.
void Session::Impl::Forget(const std::string& tag, const wire::AllocateReply& reply) {
  const std::shared_ptr<Arena> arena = arenas_.Find(tag);
  if (arena == nullptr || arena->Unmap(reply.extents).ok()) return;
  Keep(Leftover{reply.segment, tag, reply.extents, false});
}

void Session::Impl::Keep(Leftover leftover) {
  MutexLock lock(mutex_);
  leftovers_.push_back(std::move(leftover));
  has_leftovers_ = true;
}

Status Session::Impl::Free(DeviceAddress address) {
  Segment segment;
  {
    MutexLock lock(mutex_);
    const auto found = segments_.find(address);
    if (found == segments_.end()) return UnknownAddress(address);
    segment = std::move(found->second);
    segments_.erase(found);
  }
  if (guard_.Defer([this, address, segment] { (void)FreeSegment(address, segment); })) {
    return Status::Ok();
  }
  return FreeSegment(address, segment);
}

Status Session::Impl::FreeSegment(DeviceAddress address, const Segment& segment) {
  const Result<wire::FreeReply> reply =
      connection_.Ask<wire::FreeReply>(wire::Type::kFree, wire::Free{segment.id});
  if (!reply.ok()) {
    // Still mapped and still a segment: nobody heard of its end.
    MutexLock lock(mutex_);
    segments_[address] = segment;
    return reply.status();
  }
  TORPOR_RETURN_IF_ERROR(reply->status);
  if (reply->unmap.empty()) {
    operator_.NoteUnsynchronizedFree();
    operator_.NoteAsleep(reply->asleep);
    return Status::Ok();
  }
  Keep(Leftover{segment.id, segment.tag, reply->unmap});
  return Reclaim();
}

// Unmaps what is left over, once no thread is inside the work guard: a synchronize would break the
// graph capture that it may be doing. The last one to leave the guard tries again.
Status Session::Impl::Reclaim() {
  if (!has_leftovers_ || !guard_.TryExclude()) return Status::Ok();
  std::vector<Leftover> leftovers;
  {
    MutexLock lock(mutex_);
    leftovers.swap(leftovers_);
    has_leftovers_ = false;
  }
  std::vector<SegmentId> freed;
  Status first = driver_->Synchronize();
  const bool synchronized = first.ok();
  for (Leftover& leftover : leftovers) {
    const std::shared_ptr<Arena> arena = arenas_.Find(leftover.tag);
    const Status unmapped =
        synchronized && arena != nullptr ? arena->Unmap(leftover.extents) : first;
    if (first.ok()) first = unmapped;
    if (!unmapped.ok()) {
      Keep(std::move(leftover));
    } else if (leftover.tell_daemon) {
      freed.push_back(leftover.segment);
    }
  }
  guard_.EndExclude();
  for (const SegmentId segment : freed) {
    const auto reply = connection_.Ask<wire::StatusReply>(wire::Type::kFreed, wire::Freed{segment});
    const Status told = reply.ok() ? reply->status : reply.status();
    if (first.ok()) first = told;
  }
  // While a thread captures a graph, waiting is all that is wrong.
  return first.reason() == "STREAM_CAPTURE_ACTIVE" ? Status::Ok() : first;
}

Result<SegmentInfo> Session::Impl::Find(DeviceAddress address) const {
  MutexLock lock(mutex_);
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return UnknownAddress(address);
  const auto& [start, segment] = *std::prev(next);
  // Unsigned: an address may be further off than Bytes can tell.
  if (address.value() - start.value() >= segment.size.size()) return UnknownAddress(address);
  return SegmentInfo{start, segment.size, segment.tag};
}

Status Session::Impl::WorkBegin(const std::vector<std::string>& tags,
                                std::optional<Duration> timeout) {
  std::optional<TimePoint> deadline;
  if (timeout) deadline = Clock::Real().Now() + *timeout;
  const bool in_callback = InCallback();
  if (in_callback) deadline = Clock::Real().Now();
  Status status = guard_.Begin(tags, deadline);
  if (in_callback && status.code() == Code::kDeadlineExceeded) {
    return FailedPrecondition("CALLED_FROM_CALLBACK",
                              "work cannot start in a callback while the worker is quiet");
  }
  return status;
}

Status Session::Impl::WorkEnd() {
  TORPOR_RETURN_IF_ERROR(guard_.End());
  if (has_leftovers_) (void)Reclaim();
  return Status::Ok();
}

Status Session::Impl::OnPause(PauseHook::Callbacks callbacks) {
  if (InCallback()) {
    return FailedPrecondition("CALLED_FROM_CALLBACK", "a callback cannot replace callbacks");
  }
  MutexLock lock(quiesce_mutex_);
  const bool any = callbacks.pause != nullptr;
  hook_.Set(std::move(callbacks));
  Status status = TellQuiesce(any ? wire::Quiesce::kCallback : quiesce_);
  if (!status.ok()) hook_.Set({});
  return status;
}

Status Session::Impl::SetQuiesce(wire::Quiesce quiesce) {
  MutexLock lock(quiesce_mutex_);
  TORPOR_RETURN_IF_ERROR(TellQuiesce(quiesce));
  quiesce_ = quiesce;
  return Status::Ok();
}

Status Session::Impl::TellQuiesce(wire::Quiesce quiesce) {
  TORPOR_ASSIGN_OR_RETURN(
      const wire::StatusReply reply,
      connection_.Ask<wire::StatusReply>(wire::Type::kSetQuiesce, wire::SetQuiesce{quiesce}));
  return reply.status;
}

Status Session::Impl::SetSleepEndpoint(const std::string& endpoint) {
  TORPOR_ASSIGN_OR_RETURN(const wire::StatusReply reply,
                          connection_.Ask<wire::StatusReply>(wire::Type::kSetSleepEndpoint,
                                                             wire::SetSleepEndpoint{endpoint}));
  return reply.status;
}

template <typename Request>
Result<wire::SleepReply> Session::Impl::Operate(wire::Type type, const Request& request) {
  TORPOR_RETURN_IF_ERROR(CheckMayWait());
  TORPOR_ASSIGN_OR_RETURN(
      wire::SleepReply reply,
      connection_.Ask<wire::SleepReply>(type, request, AnswerDeadline(request.timeout_ms)));
  TORPOR_RETURN_IF_ERROR(reply.status);
  return reply;
}

Result<wire::UsageReply> Session::Impl::Usage() {
  TORPOR_ASSIGN_OR_RETURN(wire::UsageReply reply,
                          connection_.Ask<wire::UsageReply>(wire::Type::kUsage, wire::Usage{}));
  TORPOR_RETURN_IF_ERROR(reply.status);
  return reply;
}

Status Session::Impl::ReportUsage(Bytes live, Bytes reserved) {
  TORPOR_ASSIGN_OR_RETURN(
      const wire::StatusReply reply,
      connection_.Ask<wire::StatusReply>(wire::Type::kReport, wire::Report{live, reserved}));
  return reply.status;
}

Result<std::unique_ptr<Session>> Session::Connect(const Options& options,
                                                  const DriverFactory& factory) {
  WatchForks();
  const uint64_t generation = ForkGeneration();
  TORPOR_ASSIGN_OR_RETURN(UniqueFd socket, net::ConnectUnix(options.socket_path));
  TORPOR_ASSIGN_OR_RETURN(wire::HelloReply hello, SayHello(socket.get(), options));
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<Driver> driver, factory(hello));
  auto impl =
      std::make_unique<Impl>(options, std::move(hello), std::move(driver), std::move(socket));
  return std::unique_ptr<Session>(new Session(std::move(impl), generation));
}

Session::Session(std::unique_ptr<Impl> impl, uint64_t generation)
    : impl_(std::move(impl)), generation_(generation) {}

Session::~Session() {
  // A forked child has the parent's locks in whatever state, and none of its threads.
  if (!CheckProcess().ok()) (void)impl_.release();
}

Status Session::CheckProcess() const {
  return ForkGeneration() == generation_ ? Status::Ok() : ForkedStatus();
}

const wire::HelloReply& Session::hello() const { return impl_->hello(); }
Driver& Session::driver() const { return impl_->driver(); }
bool Session::InCallback() const { return impl_->InCallback(); }

Result<DeviceAddress> Session::Allocate(const std::string& tag, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Allocate(tag, size, 0);
}

Result<DeviceAddress> Session::AllocateWait(const std::string& tag, Bytes size,
                                            int64_t timeout_ms) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Allocate(tag, size, timeout_ms);
}

Status Session::Free(DeviceAddress address) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Free(address);
}

Result<SegmentInfo> Session::Find(DeviceAddress address) const {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Find(address);
}

Status Session::WorkBegin(const std::vector<std::string>& tags, std::optional<Duration> timeout) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->WorkBegin(tags, timeout);
}

Status Session::WorkEnd() {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->WorkEnd();
}

Status Session::OnPause(PauseHook::Callbacks callbacks) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->OnPause(std::move(callbacks));
}

Status Session::SetQuiesce(wire::Quiesce quiesce) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->SetQuiesce(quiesce);
}

Status Session::SetSleepEndpoint(const std::string& endpoint) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->SetSleepEndpoint(endpoint);
}

Result<wire::SleepReply> Session::Sleep(const wire::Sleep& request) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Operate(wire::Type::kSleep, request);
}

Result<wire::SleepReply> Session::WakeUp(const wire::WakeUp& request) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Operate(wire::Type::kWakeUp, request);
}

Result<wire::UsageReply> Session::Usage() {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->Usage();
}

Status Session::ReportUsage(Bytes live, Bytes reserved) {
  TORPOR_RETURN_IF_ERROR(CheckProcess());
  return impl_->ReportUsage(live, reserved);
}

}  // namespace torpor::client
