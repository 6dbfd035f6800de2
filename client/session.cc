#include "client/session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "client/arena.h"
#include "client/connection.h"
#include "client/fork_watch.h"
#include "client/operator.h"
#include "client/reclaimer.h"
#include "client/reconnect.h"
#include "client/segments.h"
#include "client/work_guard.h"
#include "lib/base/mutex.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr seconds kHelloTimeout{30};
// What the daemon gets beyond a caller's own timeout before it counts as silent.
constexpr seconds kAnswerGrace{10};

// A caller's timeout, over all the daemons that its request is put to.
class Timeout {
 public:
  // 0 or less, or beyond a year (no overflow): none.
  explicit Timeout(int64_t timeout_ms)
      : timeout_ms_(timeout_ms),
        limited_(timeout_ms > 0 && timeout_ms <= int64_t{365} * 24 * 3600 * 1000),
        end_(Clock::Real().Now() + milliseconds(limited_ ? timeout_ms : 0)) {}

  // For the next daemon.
  int64_t LeftMs() {
    if (!limited_ || std::exchange(first_, false)) return timeout_ms_;
    const auto left = std::chrono::ceil<milliseconds>(end_ - Clock::Real().Now()).count();
    return std::max<int64_t>(left, 1);  // 0 would be none
  }
  Connection::Patience Patience(std::optional<Duration> answer_grace) const {
    Connection::Patience patience;
    if (!limited_) return patience;
    patience.away.emplace(end_);
    if (answer_grace) patience.answer.emplace(end_ + *answer_grace);
    return patience;
  }

 private:
  const int64_t timeout_ms_;
  const bool limited_;
  const TimePoint end_;
  bool first_ = true;
};

wire::Hello FirstHello(const Session::Options& options) {
  wire::Hello hello;
  hello.name = options.name;
  hello.device_uuid = options.device_uuid;
  hello.quiesce = options.quiesce;
  hello.reservation = options.reservation;
  return hello;
}

}  // namespace

class Session::Impl : private Reconnector::Worker {
 public:
  Impl(const Options& options, wire::HelloReply hello, std::shared_ptr<Driver> driver, LinkPtr link)
      : hello_(std::move(hello)),
        driver_(std::move(driver)),
        arenas_(*driver_, hello_.arena_size),
        reclaimer_(*driver_, guard_, arenas_, segments_, link),
        said_(FirstHello(options)),
        quiesce_(options.quiesce),
        operator_(*driver_, guard_, hook_, arenas_),
        reconnector_(options.socket_path, hello_, *this),
        connection_(std::move(link)) {
    operator_.Start();
    connection_.Start(operator_, reconnector_);
  }

  ~Impl() override {
    connection_.GiveUpReconnecting();  // a callback may be waiting for it
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
  Result<wire::SleepReply> Operate(wire::Type type, Request request);
  Result<wire::UsageReply> Usage();
  Status ReportUsage(Bytes live, Bytes reserved);

  const wire::HelloReply& hello() const { return hello_; }
  Driver& driver() const { return *driver_; }
  bool InCallback() const { return operator_.OnOperatorThread(); }

 private:
  wire::Hello MakeHello(uint64_t generation) override;
  void OnWelcome(const LinkPtr& link, const wire::HelloReply& reply) override;

  Result<std::optional<DeviceAddress>> TryAllocate(const std::string& tag,
                                                   Received<wire::AllocateReply>& reply,
                                                   Segments::Allocation& allocation);
  Result<DeviceAddress> MapSegment(const std::string& tag, Received<wire::AllocateReply>& reply);
  void Forget(const Segment& segment, const std::vector<wire::Extent>& extents);
  Status FreeSegment(DeviceAddress address, const Segment& taken);
  void NoteLost();
  Status TellQuiesce(wire::Quiesce quiesce);
  template <typename Reply, typename Request>
  Result<Reply> Ask(wire::Type type, const Request& request);

  const wire::HelloReply hello_;
  const std::shared_ptr<Driver> driver_;
  WorkGuard guard_;
  PauseHook hook_;
  ArenaSet arenas_;
  Segments segments_;
  Reclaimer reclaimer_;

  Mutex said_mutex_;  // for moments only
  // What a daemon that is started again is told: what the last one was, or is just being told.
  wire::Hello said_ GUARDED_BY(said_mutex_);
  std::string said_endpoint_ GUARDED_BY(said_mutex_);

  Mutex quiesce_mutex_;  // what the daemon is told follows the order of calls
  wire::Quiesce quiesce_ GUARDED_BY(quiesce_mutex_);
  Mutex endpoint_mutex_;  // likewise

  Operator operator_;
  Reconnector reconnector_;
  Connection connection_;  // its thread uses everything above
};

wire::Hello Session::Impl::MakeHello(uint64_t generation) {
  wire::Hello hello;
  {
    MutexLock lock(said_mutex_);
    hello = said_;
  }
  hello.segments = segments_.ForHello(generation);
  // The daemon will unmap what is not named, and nobody may have synchronized since it was freed.
  operator_.NoteUnsynchronizedFree();
  return hello;
}

void Session::Impl::OnWelcome(const LinkPtr& link, const wire::HelloReply& reply) {
  for (const Segment& segment : segments_.MarkLost(reply.lost, guard_.asleep())) {
    const std::shared_ptr<Arena> arena = arenas_.Find(segment.tag);
    if (arena != nullptr) arena->Own(segment.offset, segment.size);
  }
  NoteLost();
  reclaimer_.OnWelcome(link);
  wire::SetSleepEndpoint endpoint;
  {
    MutexLock lock(said_mutex_);
    endpoint.endpoint = said_endpoint_;
  }
  if (!endpoint.endpoint.empty()) link->Tell(wire::Type::kSetSleepEndpoint, endpoint);
}

// Keeps work from what was lost while it had no memory, or none yet with its contents.
void Session::Impl::NoteLost() {
  std::set<std::string> tags;
  for (const Segment& segment : segments_.Lost()) {
    const std::shared_ptr<Arena> arena = arenas_.Find(segment.tag);
    if (segment.gone || arena == nullptr || !arena->Covers(segment.offset, segment.size)) {
      tags.insert(segment.tag);
    }
  }
  guard_.SetLost(std::move(tags));
}

template <typename Reply, typename Request>
Result<Reply> Session::Impl::Ask(wire::Type type, const Request& request) {
  TORPOR_ASSIGN_OR_RETURN(Received<Reply> reply, connection_.Ask<Reply>(type, request));
  TORPOR_RETURN_IF_ERROR(reply.message.status);
  return std::move(reply.message);
}

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
  Timeout timeout(timeout_ms);
  for (;;) {
    Result<std::optional<DeviceAddress>> address = std::optional<DeviceAddress>();
    {
      Segments::Allocation allocation(segments_, tag);
      Result<Received<wire::AllocateReply>> reply = connection_.AskMade<wire::AllocateReply>(
          wire::Type::kAllocate,
          [&] {
            return wire::Allocate{tag, size, timeout.LeftMs()};
          },
          timeout.Patience(std::nullopt));
      address = reply.ok() ? TryAllocate(tag, *reply, allocation) : reply.status();
    }
    reclaimer_.OnAllocationEnd();
    TORPOR_RETURN_IF_ERROR(address.status());
    if (address->has_value()) return **address;
  }
}

// Nothing: the daemon ended before it took note, and its next life knows nothing of this.
Result<std::optional<DeviceAddress>> Session::Impl::TryAllocate(
    const std::string& tag, Received<wire::AllocateReply>& reply,
    Segments::Allocation& allocation) {
  const wire::AllocateReply& given = reply.message;
  TORPOR_RETURN_IF_ERROR(given.status);
  if (!allocation.MayMap(reply.link->generation())) return std::optional<DeviceAddress>();
  const Result<DeviceAddress> address = MapSegment(tag, reply);
  const auto told = Connection::AskOn<wire::StatusReply>(
      reply.link, wire::Type::kAllocated, wire::Allocated{given.segment, address.status()});
  if (!address.ok()) return address.status();
  const Segment segment{given.segment, tag, given.offset, given.size};
  const Status accepted = told.ok() ? told->message.status : told.status();
  if (accepted.ok() && allocation.Commit(*address, segment)) return std::make_optional(*address);
  Forget(segment, given.extents);
  if (!told.ok() && !Connection::Broken(told.status())) return told.status();
  if (told.ok() && !told->message.status.ok()) return told->message.status;
  return std::optional<DeviceAddress>();
}

Result<DeviceAddress> Session::Impl::MapSegment(const std::string& tag,
                                                Received<wire::AllocateReply>& reply) {
  const wire::AllocateReply& given = reply.message;
  if (given.offset < Bytes(0) || given.size <= Bytes(0) || given.size > hello_.arena_size ||
      given.offset > hello_.arena_size - given.size) {
    return InvalidArgument("BAD_EXTENT", "the segment lies outside its arena")
        .With("offset", given.offset.value())
        .With("size", given.size.value());
  }
  TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, arenas_.Get(tag));
  const Status mapped = arena->Map(given.extents, std::move(reply.fds));
  if (!mapped.ok()) {
    Forget(Segment{given.segment, tag, given.offset, given.size}, given.extents);
    return mapped;
  }
  return arena->address() + given.offset;
}

// Unmaps a segment that nobody has seen.
void Session::Impl::Forget(const Segment& segment, const std::vector<wire::Extent>& extents) {
  const std::shared_ptr<Arena> arena = arenas_.Find(segment.tag);
  if (arena == nullptr || arena->Unmap(extents).ok()) return;
  reclaimer_.Keep({segment, extents, nullptr});
}

Status Session::Impl::Free(DeviceAddress address) {
  TORPOR_ASSIGN_OR_RETURN(const Segment segment, segments_.Take(address));
  if (guard_.Defer([this, address, segment] { (void)FreeSegment(address, segment); })) {
    return Status::Ok();
  }
  return FreeSegment(address, segment);
}

Status Session::Impl::FreeSegment(DeviceAddress address, const Segment& taken) {
  const Segment segment = segments_.StartFree(taken);
  if (segment.lost) {
    segments_.Forget(segment.id);
    NoteLost();
    reclaimer_.Keep({segment, {}, nullptr});
    return reclaimer_.Reclaim();
  }
  const auto reply = connection_.Ask<wire::FreeReply>(wire::Type::kFree, wire::Free{segment.id});
  if (!reply.ok()) {
    // Still mapped and still a segment: nobody heard of its end.
    segments_.PutBack(address, segment);
    return reply.status();
  }
  segments_.Forget(segment.id);
  const wire::FreeReply& freed = reply->message;
  if (freed.status.reason() == "UNKNOWN_SEGMENT" && reply->link->generation() > 1) {
    // An earlier daemon heard of the free, or this one has not found the segment in the hello.
    reclaimer_.Keep({segment, {}, nullptr});
    return reclaimer_.Reclaim();
  }
  TORPOR_RETURN_IF_ERROR(freed.status);
  if (freed.unmap.empty()) {
    operator_.NoteUnsynchronizedFree();
    operator_.NoteAsleep(freed.asleep, reply->link->generation());
    return Status::Ok();
  }
  reclaimer_.Keep({segment, freed.unmap, reply->link});
  return reclaimer_.Reclaim();
}

Result<SegmentInfo> Session::Impl::Find(DeviceAddress address) const {
  TORPOR_ASSIGN_OR_RETURN(const auto found, segments_.Find(address));
  return SegmentInfo{found.first, found.second.size, found.second.tag};
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
  if (reclaimer_.Any()) (void)reclaimer_.Reclaim();
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
  const auto say = [&](wire::Quiesce what) {
    MutexLock lock(said_mutex_);
    return std::exchange(said_.quiesce, what);
  };
  const wire::Quiesce before = say(quiesce);
  Status told = Ask<wire::StatusReply>(wire::Type::kSetQuiesce, wire::SetQuiesce{quiesce}).status();
  if (!told.ok()) say(before);
  return told;
}

Status Session::Impl::SetSleepEndpoint(const std::string& endpoint) {
  MutexLock order(endpoint_mutex_);
  const auto say = [&](std::string what) {
    MutexLock lock(said_mutex_);
    return std::exchange(said_endpoint_, std::move(what));
  };
  std::string before = say(endpoint);
  Status told =
      Ask<wire::StatusReply>(wire::Type::kSetSleepEndpoint, wire::SetSleepEndpoint{endpoint})
          .status();
  if (!told.ok()) say(std::move(before));
  return told;
}

template <typename Request>
Result<wire::SleepReply> Session::Impl::Operate(wire::Type type, Request request) {
  TORPOR_RETURN_IF_ERROR(CheckMayWait());
  Timeout timeout(request.timeout_ms);
  const auto make = [&]() -> const Request& {
    request.timeout_ms = timeout.LeftMs();
    return request;
  };
  TORPOR_ASSIGN_OR_RETURN(
      Received<wire::SleepReply> reply,
      connection_.AskMade<wire::SleepReply>(type, make, timeout.Patience(kAnswerGrace)));
  TORPOR_RETURN_IF_ERROR(reply.message.status);
  return std::move(reply.message);
}

Result<wire::UsageReply> Session::Impl::Usage() {
  return Ask<wire::UsageReply>(wire::Type::kUsage, wire::Usage{});
}

Status Session::Impl::ReportUsage(Bytes live, Bytes reserved) {
  return Ask<wire::StatusReply>(wire::Type::kReport, wire::Report{live, reserved}).status();
}

Result<std::unique_ptr<Session>> Session::Connect(const Options& options,
                                                  const DriverFactory& factory) {
  WatchForks();
  const uint64_t generation = ForkGeneration();
  TORPOR_ASSIGN_OR_RETURN(UniqueFd socket, net::ConnectUnix(options.socket_path));
  auto link = std::make_shared<Link>(std::move(socket), 1);
  TORPOR_ASSIGN_OR_RETURN(wire::HelloReply hello, SayHello(link->socket(), FirstHello(options),
                                                           Clock::Real().Now() + kHelloTimeout));
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<Driver> driver, factory(hello));
  auto impl = std::make_unique<Impl>(options, std::move(hello), std::move(driver), std::move(link));
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
