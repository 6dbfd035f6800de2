#include "client/ctl/follower.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/ctl/call.h"
#include "client/ctl/print.h"
#include "client/ctl/reach.h"

namespace torpor::ctl {
namespace {

// Usage is asked no more often.
constexpr Duration kLeastInterval = milliseconds(100);
constexpr Duration kUsageTimeout = seconds(5);
// How long one call waits for a daemon that is gone. A call that waits drives the connection on.
constexpr Duration kReconnectTimeout = seconds(1);
// Before a daemon that has refused its events is asked again.
constexpr Duration kRefusedPause = std::chrono::minutes(2);
constexpr size_t kEvents = 100;

TimePoint Now() { return std::chrono::steady_clock::now(); }

// The daemon has said no, and will again.
bool IsRefused(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
         status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
}

// Nobody listens, as this program has found.
bool IsNotRunning(const grpc::Status& status) {
  return ReasonOf(ToRpcStatus(status, "")) == "DAEMON_NOT_RUNNING";
}

// Or gRPC says so, and no daemon.
bool IsUnreachable(const grpc::Status& status) {
  if (!status.error_details().empty()) return IsNotRunning(status);
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

// Between attempts that fail. One that is starting will soon serve.
Duration MostPause(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ? seconds(1) : seconds(5);
}

bool SameDaemon(const v1::UsageResponse& one, const v1::UsageResponse& other) {
  return one.start_time().seconds() == other.start_time().seconds() &&
         one.start_time().nanos() == other.start_time().nanos();
}

}  // namespace

Follower::Follower(const Daemon& daemon, Duration interval, std::function<void()> changed)
    : interval_(interval), changed_(std::move(changed)), target_(daemon.target) {
  {
    MutexLock lock(mutex_);
    view_.name = daemon.name;
    view_.status = ToRpcStatus(daemon.status);
  }
  poller_ = std::thread([this] { PollUsage(); });
  watcher_ = std::thread([this] { FollowEvents(); });
}

Follower::~Follower() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
    if (usage_ != nullptr) usage_->TryCancel();
    if (watch_ != nullptr) watch_->TryCancel();
    wake_.NotifyAll();
  }
  poller_.join();
  watcher_.join();
}

DaemonView Follower::Snapshot() const {
  MutexLock lock(mutex_);
  DaemonView view = view_;
  view.moving = operations_.List();
  return view;
}

bool Follower::Begin(grpc::ClientContext& context, Call call) {
  MutexLock lock(mutex_);
  if (ends_) return false;
  this->*call = &context;
  return true;
}

void Follower::End(Call call) {
  MutexLock lock(mutex_);
  this->*call = nullptr;
}

bool Follower::Ends() const {
  MutexLock lock(mutex_);
  return ends_;
}

bool Follower::Pause(Duration time) {
  const TimePoint until = Now() + time;
  MutexLock lock(mutex_);
  while (!ends_ && Now() < until) wake_.WaitUntil(mutex_, until);
  return !ends_;
}

bool Follower::PauseWatch(Duration time) {
  const TimePoint until = Now() + time;
  MutexLock lock(mutex_);
  while (!ends_ && !is_another_ && Now() < until) wake_.WaitUntil(mutex_, until);
  return !ends_;
}

grpc::Status Follower::Connect(Duration patience,
                               std::unique_ptr<v1::MemoryService::Stub>& stub) const {
  const auto channel = Reach(target_, patience, [this] { return Ends(); });
  if (!channel.ok()) return ToGrpcStatus(channel.status());
  stub = v1::MemoryService::NewStub(*channel);
  return grpc::Status::OK;
}

void Follower::Answered(v1::UsageResponse usage, bool after_failure) {
  MutexLock lock(mutex_);
  if (after_failure || (view_.usage && !SameDaemon(*view_.usage, usage))) {
    is_another_ = true;
    wake_.NotifyAll();
  }
  view_.usage = std::move(usage);
  view_.usage_time = std::chrono::system_clock::now();
  view_.status.Clear();
}

void Follower::PollUsage() {
  bool reachable = true;
  Duration pause = kLeastInterval;
  std::unique_ptr<v1::MemoryService::Stub> stub;
  for (;;) {
    const TimePoint begun = Now();
    grpc::ClientContext context;
    context.set_wait_for_ready(!reachable);
    SetTimeout(context, reachable ? kUsageTimeout : kReconnectTimeout);
    if (!Begin(context, &Follower::usage_)) return;
    {
      MutexLock lock(mutex_);
      stale_ = false;
    }
    v1::UsageResponse usage;
    grpc::Status status;
    if (stub == nullptr) status = Connect(reachable ? kUsageTimeout : kReconnectTimeout, stub);
    if (status.ok()) status = stub->Usage(&context, {}, &usage);
    End(&Follower::usage_);
    if (status.ok()) {
      Answered(std::move(usage), !reachable);
      reachable = true;
      pause = kLeastInterval;
    } else {
      {
        MutexLock lock(mutex_);
        if (ends_) return;
        // What comes while one waits for the next daemon says less.
        if (reachable || !IsUnreachable(status) || IsNotRunning(status)) {
          view_.status = ToRpcStatus(status, target_);
        }
      }
      reachable = !IsUnreachable(status);
      // One who waits for the next daemon has waited in the call.
      pause = reachable ? std::min(2 * pause, MostPause(status)) : kLeastInterval;
      stub.reset();
    }
    changed_();
    if (!Pause(pause)) return;
    if (!status.ok()) continue;
    MutexLock lock(mutex_);
    const TimePoint until = begun + interval_;
    while (!ends_ && !stale_ && Now() < until) wake_.WaitUntil(mutex_, until);
    if (ends_) return;
  }
}

void Follower::FollowEvents() {
  v1::WatchRequest request;
  Duration pause = kLeastInterval;
  for (;;) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    if (!Begin(context, &Follower::watch_)) return;
    {
      MutexLock lock(mutex_);
      is_another_ = false;
    }
    std::unique_ptr<v1::MemoryService::Stub> stub;
    grpc::Status status = Connect(kReconnectTimeout, stub);
    const auto reader = status.ok() ? stub->Watch(&context, request) : nullptr;
    v1::WatchResponse response;
    bool begins = true;
    while (reader != nullptr && reader->Read(&response)) {
      request.set_cursor(response.cursor());
      MutexLock lock(mutex_);
      if (begins) view_.no_events.Clear();
      begins = false;
      if (response.event_case() == v1::WatchResponse::EVENT_NOT_SET) continue;
      operations_.Add(response);
      if (!response.has_progress()) {
        view_.events.push_back(response);
        if (view_.events.size() > kEvents) view_.events.pop_front();
        stale_ = true;
        wake_.NotifyAll();
      }
      changed_();
    }
    if (reader != nullptr) status = reader->Finish();
    End(&Follower::watch_);
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) request.clear_cursor();
    {
      MutexLock lock(mutex_);
      operations_.Clear();
      if (IsRefused(status)) view_.no_events = ToRpcStatus(status, target_);
      if (!begins) stale_ = true;
      wake_.NotifyAll();
    }
    if (IsRefused(status)) changed_();
    pause = begins ? std::min(2 * pause, MostPause(status)) : kLeastInterval;
    if (!PauseWatch(IsRefused(status) ? kRefusedPause : pause)) return;
  }
}

}  // namespace torpor::ctl
