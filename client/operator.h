#ifndef TORPOR_CLIENT_OPERATOR_H_
#define TORPOR_CLIENT_OPERATOR_H_

#include <atomic>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/arena.h"
#include "client/connection.h"
#include "client/pause_hook.h"
#include "client/work_guard.h"
#include "lib/base/mutex.h"
#include "lib/cuda/driver.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// Obeys the daemon's requests, one after the other, on a thread of its own (the operator thread):
// the only place that waits for the work guard, calls the application back and synchronizes for an
// operation. The socket thread only queues for it and marks what was cancelled.
//
// A Quiesce that fails leaves the worker running; one that succeeds keeps it quiet until the
// operation's Resume or, if it was cancelled, any Resume. When a link ends, an operation that was
// under way ends as well: work goes on, except where it needs a tag that the operation has
// unmapped, which the next daemon mends before its first Resume.
class Operator : public Connection::Handler {
 public:
  // All must outlive the operator.
  Operator(Driver& driver, WorkGuard& guard, PauseHook& hook, ArenaSet& arenas)
      : driver_(driver), guard_(guard), hook_(hook), arenas_(arenas) {}
  ~Operator() override { Stop(); }

  void Start();
  // Ends the thread after the step that is running; a wait for the work guard is given up. What is
  // queued is not answered. Not from the operator thread.
  void Stop();

  bool OnOperatorThread() const { return std::this_thread::get_id() == thread_id_; }

  // A segment was freed, and nobody has synchronized the device since: an operation of the daemon
  // will unmap it.
  void NoteUnsynchronizedFree() { unsynchronized_free_ = true; }
  // What sleeps was freed: perhaps nothing does any more. `generation`: of the link that says so.
  void NoteAsleep(const wire::AsleepTags& asleep, uint64_t generation);

  void OnRequest(const LinkPtr& link, net::Frame request) override;
  void OnBroken() override;
  void OnClosed() override;

 private:
  struct Request {
    LinkPtr link;
    net::Frame frame;
  };

  // How many cancelled operations are remembered: more than a daemon has under way.
  static constexpr size_t kCancelledKept = 1024;

  void Run();
  void Obey(Request request);
  template <typename Message>
  void Step(Request& request, Status (Operator::*obey)(const Message&, Request&));
  Status QuiesceStep(const wire::QuiesceRequest& message, Request& request);
  Status UnmapStep(const wire::UnmapRequest& message, Request& request);
  Status UnmapIn(Arena& arena, const std::string& tag, const std::vector<wire::Extent>& extents,
                 OperationId operation, const Link& link);
  Status MapStep(const wire::MapRequest& message, Request& request);
  Status ResumeStep(const wire::ResumeRequest& request, const Link& link);
  Status Synchronize();
  // Ends what was under way; returns the tags that it has unmapped in part.
  std::vector<std::string> DropOperations();
  void DropQueue();

  void MarkCancelled(OperationId operation);
  // Cancelled by the daemon, or with its link.
  bool Cancelled(OperationId operation, const Link& link) const;
  static Status CancelledStatus(OperationId operation);

  Driver& driver_;
  WorkGuard& guard_;
  PauseHook& hook_;
  ArenaSet& arenas_;
  std::thread thread_;

  std::atomic<std::thread::id> thread_id_{};

  std::atomic<bool> unsynchronized_free_{false};

  // Of the operator thread alone: the operations that keep this worker quiet, and what it was told
  // to unmap meanwhile, by tag.
  std::set<OperationId> quiet_;
  std::map<std::string, std::set<ExtentId>> to_unmap_;

  mutable Mutex mutex_;  // may be taken under the work guard's own mutex, never the other way
  CondVar queued_;
  std::deque<Request> queue_ GUARDED_BY(mutex_);
  bool awake_ GUARDED_BY(mutex_) = false;   // to be looked at: the application may run
  bool broken_ GUARDED_BY(mutex_) = false;  // to be dealt with before what is queued
  bool closed_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::set<OperationId> cancelled_ GUARDED_BY(mutex_);
  std::deque<OperationId> cancelled_order_ GUARDED_BY(mutex_);
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_OPERATOR_H_
