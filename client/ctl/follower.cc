#include "client/ctl/follower.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/ctl/call.h"

namespace torpor::ctl {
namespace {

// Usage is asked no more often.
constexpr Duration kLeastInterval = milliseconds(100);
constexpr Duration kUsageTimeout = seconds(5);
// How long one call waits for a daemon that is gone. A call that waits drives the connection on.
constexpr Duration kReconnectTimeout = seconds(1);
constexpr size_t kEvents = 100;

TimePoint Now() { return std::chrono::steady_clock::now(); }

}  // namespace

Follower::Follower(const Daemon& daemon, Duration interval, std::function<void()> changed)
    : interval_(interval), changed_(std::move(changed)), stub_(Connect(daemon.target)) {
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

bool Follower::Pause(Duration time) {
  const TimePoint until = Now() + time;
  MutexLock lock(mutex_);
  while (!ends_ && Now() < until) wake_.WaitUntil(mutex_, until);
  return !ends_;
}

void Follower::PollUsage() {
  bool answers = true;
  for (;;) {
    const TimePoint begun = Now();
    grpc::ClientContext context;
    context.set_wait_for_ready(!answers);
    SetTimeout(context, answers ? kUsageTimeout : kReconnectTimeout);
    if (!Begin(context, &Follower::usage_)) return;
    {
      MutexLock lock(mutex_);
      stale_ = false;
    }
    v1::UsageResponse usage;
    const grpc::Status status = stub_->Usage(&context, {}, &usage);
    End(&Follower::usage_);
    {
      MutexLock lock(mutex_);
      if (ends_) return;
      if (status.ok()) {
        view_.usage = std::move(usage);
        view_.usage_time = std::chrono::system_clock::now();
        view_.status.Clear();
      } else if (answers) {
        // What comes while one waits for the next daemon says less.
        view_.status = ToRpcStatus(status);
      }
    }
    answers = status.ok();
    changed_();
    if (!Pause(kLeastInterval)) return;
    if (!answers) continue;
    MutexLock lock(mutex_);
    const TimePoint until = begun + interval_;
    while (!ends_ && !stale_ && Now() < until) wake_.WaitUntil(mutex_, until);
    if (ends_) return;
  }
}

void Follower::FollowEvents() {
  v1::WatchRequest request;
  for (;;) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    if (!Begin(context, &Follower::watch_)) return;
    const auto reader = stub_->Watch(&context, request);
    v1::WatchResponse response;
    while (reader->Read(&response)) {
      request.set_cursor(response.cursor());
      if (response.event_case() == v1::WatchResponse::EVENT_NOT_SET) continue;
      MutexLock lock(mutex_);
      operations_.Add(response);
      if (!response.has_progress()) {
        view_.events.push_back(response);
        if (view_.events.size() > kEvents) view_.events.pop_front();
        stale_ = true;
        wake_.NotifyAll();
      }
      changed_();
    }
    const grpc::Status status = reader->Finish();
    End(&Follower::watch_);
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) request.clear_cursor();
    {
      MutexLock lock(mutex_);
      operations_.Clear();
      stale_ = true;
      wake_.NotifyAll();
    }
    if (!Pause(kLeastInterval)) return;
  }
}

}  // namespace torpor::ctl
