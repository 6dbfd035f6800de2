#ifndef TORPOR_DAEMON_SESSION_WORKER_LINK_H_
#define TORPOR_DAEMON_SESSION_WORKER_LINK_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/extent.h"
#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/wire/channel.h"
#include "lib/wire/messages.h"

namespace torpor {

// What the daemon asks of one worker. Thread-safe. Errors besides the worker's own: DEADLINE_EXCEEDED
// WORKER_SILENT, UNAVAILABLE WORKER_GONE, and, where a wait takes a token, the reason of that.
class WorkerLink {
 public:
  WorkerLink(WorkerId worker, std::shared_ptr<wire::Channel> channel)
      : worker_(worker), channel_(std::move(channel)) {}

  WorkerId worker() const { return worker_; }
  wire::Channel& channel() { return *channel_; }

  // An answer that is still to come.
  class Pending {
   public:
    Status Wait(TimePoint deadline, const CancelToken* cancel = nullptr);

   private:
    friend class WorkerLink;
    WorkerLink* link_ = nullptr;
    const char* what_ = "";
    Status failed_;  // could not be asked
    std::vector<wire::Channel::CallPtr> calls_;
  };

  Status Quiesce(OperationId operation, bool own, TimePoint deadline,
                 const CancelToken* cancel = nullptr);
  // `extents` must live until the answer is there. One frame carries no more than
  // net::kMaxFrameFds descriptors, so Map may take several, each all or nothing.
  Pending StartMap(OperationId operation, const std::string& tag,
                   const std::vector<ExtentPtr>& extents);
  Pending StartUnmap(OperationId operation, const std::string& tag,
                     const std::vector<ExtentPtr>& extents);
  Status Resume(OperationId operation, const std::vector<std::string>& asleep, TimePoint deadline);

  // Sends a CANCEL; Wait for the answer, which says what the worker maps, as long as it takes.
  Result<wire::Channel::CallPtr> StartCancel(OperationId operation);
  Result<std::vector<ExtentId>> WaitCancel(const wire::Channel::CallPtr& call,
                                           std::optional<TimePoint> deadline);

 private:
  Status Explain(Status status, const char* what) const;

  const WorkerId worker_;
  const std::shared_ptr<wire::Channel> channel_;
};

// Who is connected. Thread-safe.
class WorkerDirectory {
 public:
  void Add(std::shared_ptr<WorkerLink> link) EXCLUDES(mutex_);
  void Remove(WorkerId worker) EXCLUDES(mutex_);
  // UNAVAILABLE WORKER_GONE.
  Result<std::shared_ptr<WorkerLink>> Find(WorkerId worker) const EXCLUDES(mutex_);
  void EndAll(const Status& cause) EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<WorkerId, std::shared_ptr<WorkerLink>> links_ GUARDED_BY(mutex_);
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SESSION_WORKER_LINK_H_
