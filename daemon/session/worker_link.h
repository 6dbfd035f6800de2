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

// What the daemon asks of one worker. Thread-safe. Errors besides the worker's own:
// DEADLINE_EXCEEDED WORKER_SILENT, UNAVAILABLE WORKER_GONE, and, where a wait takes a token, the
// reason of that.
class WorkerLink {
 public:
  WorkerLink(WorkerId worker, std::shared_ptr<wire::Channel> channel)
      : worker_(worker), channel_(std::move(channel)) {}

  WorkerId worker() const { return worker_; }
  wire::Channel& channel() { return *channel_; }

  // How long to wait for each answer.
  struct Limits {
    Duration patience;
    TimePoint latest = TimePoint::max();
    const CancelToken* cancel = nullptr;
    TimePoint Next() const;
  };

  // An answer that is still to come.
  class Pending {
   public:
    // Extents that the worker had too few descriptors for are mapped again, one smaller batch after
    // the other; RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED when it cannot take a single one.
    Status Wait(TimePoint deadline, const CancelToken* cancel = nullptr);

   private:
    friend class WorkerLink;
    struct Asked {
      wire::Channel::CallPtr call;
      size_t from = 0;  // a MAP's part of extents_
      size_t count = 0;
    };
    void Collect(TimePoint deadline, const CancelToken* cancel);
    Status Finish(const Limits& limits);
    Status MapAgain(const Asked& part, const Limits& limits);

    WorkerLink* link_ = nullptr;
    const char* what_ = "";
    Status first_;  // the first failure
    std::vector<Asked> asked_;
    std::vector<Asked> again_;
    OperationId operation_;  // of a MAP, as the rest
    std::string tag_;
    std::vector<ExtentPtr> extents_;
  };
  // Waits for all of one worker; the first failure.
  static Status WaitForAll(std::vector<Pending>& pending, const Limits& limits);

  Status Quiesce(OperationId operation, bool own, TimePoint deadline,
                 const CancelToken* cancel = nullptr);
  // Several requests if there are many extents, each all or nothing. The answer keeps the extents
  // until it is there.
  Pending StartMap(OperationId operation, const std::string& tag,
                   const std::vector<ExtentPtr>& extents);
  Pending StartUnmap(OperationId operation, const std::string& tag,
                     const std::vector<ExtentPtr>& extents);
  // Extents that the daemon knows by their ids only. Blocks for the answer.
  Status UnmapAnywhere(OperationId operation, const std::vector<wire::Extent>& extents,
                       Duration patience);
  Status Resume(OperationId operation, const wire::AsleepTags& asleep, TimePoint deadline);

  // Sends a CANCEL; Wait for the answer, which says what the worker maps, as long as it takes.
  Result<wire::Channel::CallPtr> StartCancel(OperationId operation);
  Result<std::vector<ExtentId>> WaitCancel(const wire::Channel::CallPtr& call,
                                           std::optional<TimePoint> deadline);

 private:
  Status Explain(Status status, const char* what) const;
  Status StatusOf(const wire::Channel::CallPtr& call, TimePoint deadline,
                  const CancelToken* cancel);
  Result<wire::Channel::CallPtr> SendMap(const Pending& pending, size_t from, size_t count);

  const WorkerId worker_;
  const std::shared_ptr<wire::Channel> channel_;
};

// Who is connected. Thread-safe.
class WorkerDirectory {
 public:
  void Add(std::shared_ptr<WorkerLink> link) EXCLUDES(mutex_);
  void Remove(WorkerId worker) EXCLUDES(mutex_);
  // UNAVAILABLE WORKER_GONE, or why all have ended.
  Result<std::shared_ptr<WorkerLink>> Find(WorkerId worker) const EXCLUDES(mutex_);
  // For good.
  void EndAll(const Status& cause) EXCLUDES(mutex_);
  // OK, or the cause of EndAll.
  Status ended() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  Status ended_ GUARDED_BY(mutex_);
  std::map<WorkerId, std::shared_ptr<WorkerLink>> links_ GUARDED_BY(mutex_);
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SESSION_WORKER_LINK_H_
