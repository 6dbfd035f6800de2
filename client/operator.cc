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
  std::deque<Request> dropped;  // descriptors are closed outside the lock
  MutexLock lock(mutex_);
  dropped.swap(queue_);
}

void Operator::OnRequest(const LinkPtr& link, net::Frame request) {
  if (static_cast<wire::Type>(request.type) == wire::Type::kCancel && !request.payload_missing) {
    const Result<wire::CancelRequest> cancel = wire::Decode<wire::CancelRequest>(request.payload);
    if (!cancel.ok()) return link->End(cancel.status());
    MarkCancelled(cancel->operation);
    guard_.Interrupt();
  }
  MutexLock lock(mutex_);
  queue_.push_back({link, std::move(request)});
  queued_.NotifyAll();
}

void Operator::OnBroken() {
  DropQueue();
  {
    MutexLock lock(mutex_);
    broken_ = true;
    cancelled_.clear();  // the next daemon counts anew
    cancelled_order_.clear();
    queued_.NotifyAll();
  }
  guard_.Interrupt();
}

void Operator::OnClosed() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    queued_.NotifyAll();
  }
  guard_.Interrupt();
}

void Operator::NoteAsleep(const wire::AsleepTags& asleep, uint64_t generation) {
  if (asleep.revision == 0) return;
  guard_.SetAsleep(asleep, generation);
  if (!guard_.Running()) return;
  MutexLock lock(mutex_);
  awake_ = true;
  queued_.NotifyAll();
}

void Operator::Run() {
  thread_id_ = std::this_thread::get_id();
  for (;;) {
    Request request;
    bool closed = false;
    bool broken = false;
    bool awake = false;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !awake_ && !broken_ && !closed_ && !stopping_) queued_.Wait(mutex_);
      if (stopping_) return;
      closed = closed_;
      broken = std::exchange(broken_, false);
      awake = std::exchange(awake_, false);
      if (!closed && !broken && !awake) {
        request = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    if (closed) {
      DropQueue();
      guard_.Abandon(DropOperations());
    } else if (broken) {
      guard_.Disconnect(DropOperations());
    }
    if (closed || broken || awake) {
      if (guard_.Running()) hook_.EnsureRunning();
      if (closed) return;
      continue;
    }
    Obey(std::move(request));
  }
}

void Operator::Obey(Request request) {
  const auto answer = [&](const auto& reply) { request.link->Answer(request.frame, reply); };
  const auto type = static_cast<wire::Type>(request.frame.type);
  if (request.frame.payload_missing) {
    if (type == wire::Type::kCancel) {
      return answer(wire::CancelReply{net::DescriptorsMissing(), {}});
    }
    return answer(wire::StatusReply{net::DescriptorsMissing()});
  }
  switch (type) {
    case wire::Type::kQuiesce:
      return Step(request, &Operator::QuiesceStep);
    case wire::Type::kUnmap:
      return Step(request, &Operator::UnmapStep);
    case wire::Type::kMap:
      return Step(request, &Operator::MapStep);
    case wire::Type::kResume: {
      const auto resume = wire::Decode<wire::ResumeRequest>(request.frame.payload);
      if (!resume.ok()) return request.link->End(resume.status());
      return answer(wire::StatusReply{ResumeStep(*resume, *request.link)});
    }
    case wire::Type::kCancel:
      // Marked when it arrived; by now no step of the operation is running.
      return answer(wire::CancelReply{Status::Ok(), arenas_.Mapped()});
    default:
      return answer(wire::StatusReply{
          Status(Code::kUnimplemented, "UNKNOWN_REQUEST", "the worker does not know this request")
              .With("type", request.frame.type)});
  }
}

template <typename Message>
void Operator::Step(Request& request, Status (Operator::*obey)(const Message&, Request&)) {
  const Result<Message> decoded = wire::Decode<Message>(request.frame.payload);
  if (!decoded.ok()) return request.link->End(decoded.status());
  const Status status = Cancelled(decoded->operation, *request.link)
                            ? CancelledStatus(decoded->operation)
                            : (this->*obey)(*decoded, request);
  request.frame.fds.clear();  // before the answer: it says that nothing is held that should not be
  request.link->Answer(request.frame, wire::StatusReply{status});
}

Status Operator::QuiesceStep(const wire::QuiesceRequest& message, Request& request) {
  const OperationId operation = message.operation;
  TORPOR_RETURN_IF_ERROR(
      guard_.Quiet(operation, [&] { return Cancelled(operation, *request.link); }));
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

Status Operator::UnmapStep(const wire::UnmapRequest& message, Request& request) {
  const Link& link = *request.link;
  if (!message.tag.empty()) {
    const std::shared_ptr<Arena> arena = arenas_.Find(message.tag);
    if (arena == nullptr) return Status::Ok();
    return UnmapIn(*arena, message.tag, message.extents, message.operation, link);
  }
  for (const auto& [tag, arena] : arenas_.All()) {
    const std::vector<wire::Extent> held = arena->HeldOf(message.extents);
    if (held.empty()) continue;
    TORPOR_RETURN_IF_ERROR(UnmapIn(*arena, tag, held, message.operation, link));
  }
  return Status::Ok();
}

Status Operator::UnmapIn(Arena& arena, const std::string& tag,
                         const std::vector<wire::Extent>& extents, OperationId operation,
                         const Link& link) {
  if (quiet_.count(operation) > 0) {
    std::set<ExtentId>& to_unmap = to_unmap_[tag];
    for (const wire::Extent& extent : extents) to_unmap.insert(extent.id);
  } else if (unsynchronized_free_) {
    // Without a Quiesce it is memory that nobody has seen yet, or that was freed.
    TORPOR_RETURN_IF_ERROR(guard_.Quiet(operation, [&] { return Cancelled(operation, link); }));
    const Status synchronized = Synchronize();
    guard_.Release(operation);
    TORPOR_RETURN_IF_ERROR(synchronized);
  }
  return arena.Unmap(extents);
}

Status Operator::MapStep(const wire::MapRequest& message, Request& request) {
  TORPOR_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, arenas_.Get(message.tag));
  return arena->Map(message.extents, std::move(request.frame.fds));
}

Status Operator::ResumeStep(const wire::ResumeRequest& request, const Link& link) {
  guard_.SetAsleep(request.asleep, link.generation());
  guard_.Mend();
  // A roll back is an operation of its own: its Resume also ends the one that was cancelled.
  for (auto operation = quiet_.begin(); operation != quiet_.end();) {
    if (*operation == request.operation || Cancelled(*operation, link)) {
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

std::vector<std::string> Operator::DropOperations() {
  const std::vector<ExtentId> all_mapped = arenas_.Mapped();
  const std::set<ExtentId> mapped(all_mapped.begin(), all_mapped.end());
  std::vector<std::string> torn;
  for (const auto& [tag, extents] : to_unmap_) {
    if (!std::includes(mapped.begin(), mapped.end(), extents.begin(), extents.end())) {
      torn.push_back(tag);
    }
  }
  to_unmap_.clear();
  quiet_.clear();
  return torn;
}

void Operator::MarkCancelled(OperationId operation) {
  MutexLock lock(mutex_);
  if (!cancelled_.insert(operation).second) return;
  cancelled_order_.push_back(operation);
  if (cancelled_order_.size() <= kCancelledKept) return;
  cancelled_.erase(cancelled_order_.front());
  cancelled_order_.pop_front();
}

bool Operator::Cancelled(OperationId operation, const Link& link) const {
  if (!link.Gone().ok()) return true;
  MutexLock lock(mutex_);
  return stopping_ || closed_ || cancelled_.count(operation) > 0;
}

Status Operator::CancelledStatus(OperationId operation) {
  return Aborted("OPERATION_CANCELLED", "the operation was cancelled")
      .With("operation", operation.value());
}

}  // namespace torpor::client
