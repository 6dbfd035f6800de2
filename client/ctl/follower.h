#ifndef TORPOR_CLIENT_CTL_FOLLOWER_H_
#define TORPOR_CLIENT_CTL_FOLLOWER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "client/ctl/daemons.h"
#include "client/ctl/frame.h"
#include "client/ctl/progress.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {

// Keeps a view of a daemon up to date, by its events and by Usage after each and at least after
// every `interval`, and goes on when another daemon follows it. What the daemon refuses is asked
// rarely. Thread-safe.
class Follower {
 public:
  // `changed` is called from other threads.
  Follower(const Daemon& daemon, Duration interval, std::function<void()> changed);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  DaemonView Snapshot() const EXCLUDES(mutex_);

 private:
  void PollUsage() EXCLUDES(mutex_);
  void FollowEvents() EXCLUDES(mutex_);
  // The context of one of the two calls under way.
  using Call = grpc::ClientContext* Follower::*;
  // Whether it may begin: not when this is to end.
  bool Begin(grpc::ClientContext& context, Call call) EXCLUDES(mutex_);
  void End(Call call) EXCLUDES(mutex_);
  bool Ends() const EXCLUDES(mutex_);
  // False when this is to end.
  bool Pause(Duration time) EXCLUDES(mutex_);
  // Also ends when another daemon answers than before.
  bool PauseWatch(Duration time) EXCLUDES(mutex_);
  grpc::Status Connect(Duration patience, std::unique_ptr<v1::MemoryService::Stub>& stub) const
      EXCLUDES(mutex_);
  void Answered(v1::UsageResponse usage, bool after_failure) EXCLUDES(mutex_);

  const Duration interval_;
  const std::function<void()> changed_;
  const std::string target_;
  mutable Mutex mutex_;
  CondVar wake_;
  DaemonView view_ GUARDED_BY(mutex_);
  Operations operations_ GUARDED_BY(mutex_);
  bool ends_ GUARDED_BY(mutex_) = false;
  bool stale_ GUARDED_BY(mutex_) = false;       // something has happened since Usage was asked
  bool is_another_ GUARDED_BY(mutex_) = false;  // who answers is not who has refused to be watched
  // Of the calls under way.
  grpc::ClientContext* usage_ GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* watch_ GUARDED_BY(mutex_) = nullptr;
  std::thread poller_;
  std::thread watcher_;
};

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_FOLLOWER_H_
