#include "daemon/service/watch_hub.h"

#include <chrono>
#include <utility>
#include <vector>

#include "daemon/service/grpc_status.h"

namespace torpor {
namespace {

constexpr size_t kBatch = 64;
// A response without an event after so many that the watcher does not want, so that its cursor is
// not lost while nothing happens that it watches.
constexpr size_t kSilence = 1024;

class Refusal final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  explicit Refusal(const Status& why) { Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

// A response under way makes it busy; so does the end, for good.
class WatchHub::Watcher final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  Watcher(WatchHub& hub, WatchCommand command, uint64_t position)
      : hub_(hub), command_(std::move(command)), position_(position) {}

  // There may be something new.
  void Poke() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Continue();
  }
  void End(const Status& why) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ended_ = why;
    Continue();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    busy_ = false;
    cancelled_ = cancelled_ || !ok;
    Continue();
  }
  void OnCancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    Continue();
  }
  void OnDone() override { hub_.Remove(this); }

 private:
  // Unless it is busy. gRPC calls back on other threads, so it may be called under the lock.
  void Continue() REQUIRES(mutex_);
  // Fills in response_. False: there is nothing to say.
  bool Next() REQUIRES(mutex_);
  bool NextInBatch() REQUIRES(mutex_);
  void Begin() REQUIRES(mutex_);
  void SetCursor() REQUIRES(mutex_) {
    response_.set_cursor(ToString({hub_.log_.boot_id(), position_}));
  }
  void SetTimeAndLost(int64_t lost, bool restarted) REQUIRES(mutex_);

  WatchHub& hub_;
  const WatchCommand command_;
  Mutex mutex_;
  bool busy_ GUARDED_BY(mutex_) = false;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  Status ended_ GUARDED_BY(mutex_);
  v1::WatchResponse response_ GUARDED_BY(mutex_);
  bool begun_ GUARDED_BY(mutex_) = false;
  uint64_t position_ GUARDED_BY(mutex_);
  EventLog::Batch batch_ GUARDED_BY(mutex_);
  size_t next_in_batch_ GUARDED_BY(mutex_) = 0;
  size_t silence_ GUARDED_BY(mutex_) = 0;
};

void WatchHub::Watcher::Continue() {
  if (busy_) return;
  busy_ = true;
  if (cancelled_) {
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
  } else if (Next()) {
    StartWrite(&response_);
  } else if (!ended_.ok()) {
    Finish(ToGrpcStatus(ended_));
  } else {
    busy_ = false;
  }
}

bool WatchHub::Watcher::Next() {
  response_.Clear();
  if (!begun_) {
    begun_ = true;
    Begin();
    return true;
  }
  for (;;) {
    if (NextInBatch()) return true;
    batch_ = hub_.log_.Read(position_, kBatch);
    next_in_batch_ = 0;
    if (batch_.lost != 0) {
      position_ += batch_.lost;
      SetTimeAndLost(static_cast<int64_t>(batch_.lost), false);
      return true;
    }
    if (batch_.events.empty()) return false;
  }
}

bool WatchHub::Watcher::NextInBatch() {
  while (next_in_batch_ < batch_.events.size()) {
    const Event& event = *batch_.events[next_in_batch_++];
    position_ = event.sequence;
    const bool wanted = command_.Wants(event);
    if (!wanted && ++silence_ < kSilence) continue;
    silence_ = 0;
    if (wanted) FromEvent(event, response_);
    SetCursor();
    return true;
  }
  return false;
}

// The first response: where the call begins, or what is lost before that.
void WatchHub::Watcher::Begin() {
  const bool restarted =
      command_.cursor.has_value() && command_.cursor->boot_id != hub_.log_.boot_id();
  const uint64_t lost = hub_.log_.Read(position_, 0).lost;
  position_ += lost;
  if (restarted) {
    SetTimeAndLost(-1, true);
  } else if (lost != 0) {
    SetTimeAndLost(static_cast<int64_t>(lost), false);
  } else {
    SetCursor();
  }
}

void WatchHub::Watcher::SetTimeAndLost(int64_t lost, bool restarted) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  response_.mutable_time()->set_seconds(
      std::chrono::duration_cast<std::chrono::seconds>(now).count());
  response_.mutable_lost()->set_events(lost);
  response_.mutable_lost()->set_daemon_restarted(restarted);
  SetCursor();
}

WatchHub::WatchHub(EventLog& log) : log_(log), thread_([this] { Run(); }) {}

WatchHub::~WatchHub() {
  stop_ = true;
  log_.Wake();
  thread_.join();
}

grpc::ServerWriteReactor<v1::WatchResponse>* WatchHub::Watch(const v1::WatchRequest& request) {
  const Result<std::shared_ptr<Watcher>> watcher = Add(request);
  if (!watcher.ok()) return new Refusal(watcher.status());
  (*watcher)->Poke();
  return watcher->get();
}

Result<std::shared_ptr<WatchHub::Watcher>> WatchHub::Add(const v1::WatchRequest& request) {
  TORPOR_ASSIGN_OR_RETURN(WatchCommand command, ToWatchCommand(request));
  const uint64_t last = log_.last();
  uint64_t position = last;
  if (command.cursor.has_value()) {
    const bool ours = command.cursor->boot_id == log_.boot_id();
    position = ours ? command.cursor->position : 0;
    if (position > last) {
      return InvalidArgument("BAD_CURSOR", "the cursor is ahead of everything that has happened")
          .With("position", position)
          .With("last", last);
    }
  }
  MutexLock lock(mutex_);
  if (!ended_.ok()) return ended_;
  if (watchers_.size() == kMaxWatchers) {
    return ResourceExhausted("TOO_MANY_WATCHERS", "the daemon has as many watchers as it takes")
        .With("watchers", kMaxWatchers);
  }
  auto watcher = std::make_shared<Watcher>(*this, std::move(command), position);
  watchers_[watcher.get()] = watcher;
  return watcher;
}

void WatchHub::Remove(const Watcher* watcher) {
  std::shared_ptr<Watcher> last;  // ends outside the lock
  MutexLock lock(mutex_);
  const auto it = watchers_.find(watcher);
  if (it == watchers_.end()) return;
  last = std::move(it->second);
  watchers_.erase(it);
}

size_t WatchHub::watchers() const {
  MutexLock lock(mutex_);
  return watchers_.size();
}

void WatchHub::End(const Status& why) {
  std::vector<std::shared_ptr<Watcher>> all;
  {
    MutexLock lock(mutex_);
    ended_ = why;
    for (const auto& [raw, watcher] : watchers_) all.push_back(watcher);
  }
  for (const auto& watcher : all) watcher->End(why);
}

void WatchHub::Run() {
  uint64_t seen = 0;
  std::vector<std::shared_ptr<Watcher>> all;
  for (;;) {
    log_.WaitBehind(seen, stop_);
    if (stop_) return;
    seen = log_.last();
    {
      MutexLock lock(mutex_);
      for (const auto& [raw, watcher] : watchers_) all.push_back(watcher);
    }
    for (const auto& watcher : all) watcher->Poke();
    all.clear();
  }
}

}  // namespace torpor
