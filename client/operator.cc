#include "client/operator.h"

#include <algorithm>
#include <utility>

#include "client/thread.h"

namespace torpor::client {

void Operator::Start() {
  thread_ = StartThread("torpor-operator", [this] { Run(); });
}

void Operator::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    queued_.NotifyAll();
  }
  guard_.Interrupt();
  if (thread_.joinable()) thread_.join();
  DropQueue();
}

void Operator::DropQueue() {
  std::deque<net::Frame> dropped;  // descriptors are closed outside the lock
  MutexLock lock(mutex_);
  dropped.swap(queue_);
}

void Operator::OnRequest(net::Frame request) {
  if (static_cast<wire::Type>(request.type) == wire::Type::kCancel && !request.payload_missing) {
    const Result<wire::CancelRequest> cancel = wire::Decode<wire::CancelRequest>(request.payload);
    if (!cancel.ok()) return connection_.End(cancel.status());
    MarkCancelled(cancel->operation);
    guard_.Interrupt();
  }
  MutexLock lock(mutex_);
  queue_.push_back(std::move(request));
  queued_.NotifyAll();
}

void Operator::OnClosed() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    queued_.NotifyAll();
  }
  guard_.Interrupt();
}

void Operator::NoteAsleep(const wire::AsleepTags& asleep) {
  if (asleep.revision == 0) return;
  guard_.SetAsleep(asleep);
  if (!guard_.Running()) return;
  MutexLock lock(mutex_);
  awake_ = true;
  queued_.NotifyAll();
}

void Operator::Run() {
  thread_id_ = std::this_thread::get_id();
  for (;;) {
    net::Frame request;
    bool closed = false;
    bool awake = false;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !awake_ && !closed_ && !stopping_) queued_.Wait(mutex_);
      if (stopping_) return;
      closed = closed_;
      awake = std::exchange(awake_, false);
      if (!closed && !awake) {
        request = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    if (closed) return AbandonOperations();
    if (awake) {
      if (guard_.Running()) hook_.EnsureRunning();
      continue;
    }
    Obey(std::move(request));
  }
}

void Operator::Obey(net::Frame request) {
  if (request.payload_missing) {
    if (static_cast<wire::Type>(request.type) == wire::Type::kCancel) {
      return connection_.Answer(request, wire::CancelReply{net::DescriptorsMissing(), {}});
    }
    return connection_.Answer(request, wire::StatusReply{net::DescriptorsMissing()});
  }
  switch (static_cast<wire::Type>(request.type)) {
    case wire::Type::kQuiesce:
      return Step(std::move(request), &Operator::QuiesceStep);
    case wire::Type::kUnmap:
      return Step(std::move(request), &Operator::UnmapStep);
    case wire::Type::kMap:
      return Step(std::move(request), &Operator::MapStep);
    case wire::Type::kResume: {
      const Result<wire::ResumeRequest> resume = wire::Decode<wire::ResumeRequest>(request.payload);
      if (!resume.ok()) return connection_.End(resume.status());
      return connection_.Answer(request, wire::StatusReply{ResumeStep(*resume)});
    }
    case wire::Type::kCancel:
      // Marked when it arrived; by now no step of the operation is running.
      return connection_.Answer(request, wire::CancelReply{Status::Ok(), arenas_.Mapped()});
    default:
      return connection_.Answer(request,
                                wire::StatusReply{Status(Code::kUnimplemented, "UNKNOWN_REQUEST",
                                                         "the worker does not know this request")
                                                      .With("type", request.type)});
  }
}

template <typename Request>
void Operator::Step(net::Frame request, Status (Operator::*obey)(const Request&, net::Frame&)) {
  const Result<Request> decoded = wire::Decode<Request>(request.payload);
  if (!decoded.ok()) return connection_.End(decoded.status());
  const Status status = Cancelled(decoded->operation) ? CancelledStatus(decoded->operation)
                                                      : (this->*obey)(*decoded, request);
  request.fds.clear();  // before the answer: it says that nothing is held that should not be
  connection_.Answer(request, wire::StatusReply{status});
}

Status Operator::QuiesceStep(const wire::QuiesceRequest& request, net::Frame&) {
  const OperationId operation = request.operation;
  TORPOR_RETURN_IF_ERROR(guard_.Quiet(operation, [&] { return Cancelled(operation); }));
  Status status = hook_.EnsurePaused();
  if (status.ok()) status = Synchronize();
  if (status.ok()) {
    quiet_.insert(operation);
    return status;
  }
  guard_.Release(operation);
  if (guard_.Running()) hook_.EnsureRunning();
  return status;
}

Status Operator::Synchronize() {
  const bool freed = unsynchronized_free_.exchange(false);
  Status status = driver_.Synchronize();
  if (!status.ok() && freed) unsynchronized_free_ = true;
  return status;
}

Status Operator::UnmapStep(const wire::UnmapRequest& request, net::Frame&) {
  const std::shared_ptr<Arena> arena = arenas_.Find(request.tag);
  if (arena == nullptr) return Status::Ok();
  if (quiet_.count(request.operation) > 0) {
    std::set<ExtentId>& to_unmap = to_unmap_[request.tag];
    for (const wire::Extent& extent : request.extents) to_unmap.insert(extent.id);
  } else if (unsynchronized_free_) {
    // Without a Quiesce it is memory that nobody has seen yet, or that was freed.
    const OperationId operation = request.operation;
    TORPOR_RETURN_IF_ERROR(guard_.Quiet(operation, [&] { return Cancelled(operation); }));
    const Status synchronized = Synchronize();
    guard_.Release(operation);
    TORPOR_RETURN_IF_ERROR(synchronized);
  }
  return arena->Unmap(request.extents);
}

Status Operator::MapStep(const wire::MapRequest& request, net::Frame& frame) {
  TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, arenas_.Get(request.tag));
  return arena->Map(request.extents, std::move(frame.fds));
}

Status Operator::ResumeStep(const wire::ResumeRequest& request) {
  guard_.SetAsleep(request.asleep);
  // A roll back is an operation of its own: its Resume also ends the one that was cancelled.
  for (auto operation = quiet_.begin(); operation != quiet_.end();) {
    if (*operation == request.operation || Cancelled(*operation)) {
      guard_.Release(*operation);
      operation = quiet_.erase(operation);
    } else {
      ++operation;
    }
  }
  if (quiet_.empty()) to_unmap_.clear();
  if (guard_.Running()) hook_.EnsureRunning();
  return Status::Ok();
}

void Operator::AbandonOperations() {
  DropQueue();
  const std::vector<ExtentId> all_mapped = arenas_.Mapped();
  const std::set<ExtentId> mapped(all_mapped.begin(), all_mapped.end());
  std::vector<std::string> asleep;
  for (const auto& [tag, extents] : to_unmap_) {
    if (!std::includes(mapped.begin(), mapped.end(), extents.begin(), extents.end())) {
      asleep.push_back(tag);
    }
  }
  to_unmap_.clear();
  quiet_.clear();
  guard_.Abandon(asleep);
  if (guard_.Running()) hook_.EnsureRunning();
}

void Operator::MarkCancelled(OperationId operation) {
  MutexLock lock(mutex_);
  if (!cancelled_.insert(operation).second) return;
  cancelled_order_.push_back(operation);
  if (cancelled_order_.size() <= kCancelledKept) return;
  cancelled_.erase(cancelled_order_.front());
  cancelled_order_.pop_front();
}

bool Operator::Cancelled(OperationId operation) const {
  MutexLock lock(mutex_);
  return stopping_ || closed_ || cancelled_.count(operation) > 0;
}

Status Operator::CancelledStatus(OperationId operation) {
  return Aborted("OPERATION_CANCELLED", "the operation was cancelled")
      .With("operation", operation.value());
}

}  // namespace torpor::client
