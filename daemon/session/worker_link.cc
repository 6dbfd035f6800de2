#include "daemon/session/worker_link.h"

#include <algorithm>
#include <utility>

#include "daemon/memory/inventory.h"

namespace torpor {
namespace {

// Each descriptor in flight counts against the limits of both processes.
constexpr size_t kExtentsPerMap = 64;
constexpr Duration kForever = std::chrono::hours(24);

bool OutOfDescriptors(const Status& status) {
  return status.reason() == "FILE_DESCRIPTORS_EXHAUSTED";
}

std::vector<wire::Extent> Describe(std::vector<ExtentPtr>::const_iterator from,
                                   std::vector<ExtentPtr>::const_iterator to) {
  std::vector<wire::Extent> described;
  for (; from != to; ++from) {
    described.push_back({(*from)->id(), (*from)->offset(), (*from)->size()});
  }
  return described;
}

}  // namespace

Status WorkerLink::Explain(Status status, const char* what) const {
  if (status.reason() == "PEER_SILENT") {
    return DeadlineExceeded("WORKER_SILENT", "worker " + WorkerName(worker_) + " did not answer " +
                                                 what + " in time")
        .With("worker", WorkerName(worker_))
        .With("request", what);
  }
  if (!status.ok()) status.Add("worker", WorkerName(worker_));
  return status;
}

Status WorkerLink::StatusOf(const wire::Channel::CallPtr& call, TimePoint deadline,
                            const CancelToken* cancel) {
  const auto reply = channel_->WaitFor<wire::StatusReply>(call, deadline, cancel);
  return reply.ok() ? reply->status : reply.status();
}

void WorkerLink::Pending::Collect(TimePoint deadline, const CancelToken* cancel) {
  for (const Asked& asked : asked_) {
    const Status status = link_->StatusOf(asked.call, deadline, cancel);
    if (asked.count > 0 && OutOfDescriptors(status)) {
      again_.push_back(asked);
    } else if (first_.ok()) {
      first_ = status;
    }
  }
  asked_.clear();
}

Status WorkerLink::Pending::MapAgain(const Asked& part, const Limits& limits) {
  size_t batch = std::max<size_t>(1, part.count / 2);
  const size_t end = part.from + part.count;
  for (size_t at = part.from; at < end;) {
    const size_t count = std::min(batch, end - at);
    TORPOR_ASSIGN_OR_RETURN(const auto call, link_->SendMap(*this, at, count));
    Status status = link_->StatusOf(call, limits.Next(), limits.cancel);
    if (status.ok()) {
      at += count;
    } else if (OutOfDescriptors(status) && batch > 1) {
      batch /= 2;
    } else {
      return status;
    }
  }
  return Status::Ok();
}

Status WorkerLink::Pending::Finish(const Limits& limits) {
  for (const Asked& part : again_) {
    if (!first_.ok()) break;
    first_ = MapAgain(part, limits);
  }
  again_.clear();
  extents_.clear();
  return link_->Explain(first_, what_);
}

TimePoint WorkerLink::Limits::Next() const {
  return std::min(latest, std::chrono::steady_clock::now() + patience);
}

Status WorkerLink::WaitForAll(std::vector<Pending>& pending, const Limits& limits) {
  // What is queued at the worker holds descriptors there, so nothing is asked again before.
  for (Pending& one : pending) one.Collect(limits.Next(), limits.cancel);
  Status first;
  for (Pending& one : pending) {
    const Status status = one.Finish(limits);
    if (first.ok()) first = status;
  }
  return first;
}

Status WorkerLink::Pending::Wait(TimePoint deadline, const CancelToken* cancel) {
  Collect(deadline, cancel);
  return Finish({kForever, deadline, cancel});
}

Status WorkerLink::Quiesce(OperationId operation, bool own, TimePoint deadline,
                           const CancelToken* cancel) {
  const auto reply = channel_->Ask<wire::StatusReply>(
      wire::Type::kQuiesce, wire::QuiesceRequest{operation, own}, deadline, cancel);
  return Explain(reply.ok() ? reply->status : reply.status(), "QUIESCE");
}

Result<wire::Channel::CallPtr> WorkerLink::SendMap(const Pending& pending, size_t from,
                                                   size_t count) {
  const auto begin = pending.extents_.begin() + static_cast<ptrdiff_t>(from);
  const auto end = begin + static_cast<ptrdiff_t>(count);
  std::vector<int> fds;
  for (auto it = begin; it != end; ++it) fds.push_back((*it)->fd());
  return channel_->Start(
      wire::Type::kMap,
      wire::Encode(wire::MapRequest{pending.operation_, pending.tag_, Describe(begin, end)}), fds);
}

WorkerLink::Pending WorkerLink::StartMap(OperationId operation, const std::string& tag,
                                         const std::vector<ExtentPtr>& extents) {
  Pending pending;
  pending.link_ = this;
  pending.what_ = "MAP";
  pending.operation_ = operation;
  pending.tag_ = tag;
  pending.extents_ = extents;
  for (size_t from = 0; from < extents.size() && pending.first_.ok(); from += kExtentsPerMap) {
    const size_t count = std::min(kExtentsPerMap, extents.size() - from);
    auto call = SendMap(pending, from, count);
    if (call.ok()) {
      pending.asked_.push_back({*std::move(call), from, count});
    } else {
      pending.first_ = call.status();
    }
  }
  return pending;
}

WorkerLink::Pending WorkerLink::StartUnmap(OperationId operation, const std::string& tag,
                                           const std::vector<ExtentPtr>& extents) {
  Pending pending;
  pending.link_ = this;
  pending.what_ = "UNMAP";
  auto call = channel_->Start(
      wire::Type::kUnmap,
      wire::Encode(wire::UnmapRequest{operation, tag, Describe(extents.begin(), extents.end())}));
  if (call.ok()) {
    pending.asked_.push_back({*std::move(call)});
  } else {
    pending.first_ = call.status();
  }
  return pending;
}

Status WorkerLink::UnmapAnywhere(OperationId operation, const std::vector<wire::Extent>& extents,
                                 Duration patience) {
  const auto reply = channel_->Ask<wire::StatusReply>(wire::Type::kUnmap,
                                                      wire::UnmapRequest{operation, "", extents},
                                                      std::chrono::steady_clock::now() + patience);
  return Explain(reply.ok() ? reply->status : reply.status(), "UNMAP");
}

Status WorkerLink::Resume(OperationId operation, const wire::AsleepTags& asleep,
                          TimePoint deadline) {
  const auto reply = channel_->Ask<wire::StatusReply>(
      wire::Type::kResume, wire::ResumeRequest{operation, asleep}, deadline);
  return Explain(reply.ok() ? reply->status : reply.status(), "RESUME");
}

Result<wire::Channel::CallPtr> WorkerLink::StartCancel(OperationId operation) {
  return channel_->Start(wire::Type::kCancel, wire::Encode(wire::CancelRequest{operation}));
}

Result<std::vector<ExtentId>> WorkerLink::WaitCancel(const wire::Channel::CallPtr& call,
                                                     std::optional<TimePoint> deadline) {
  auto reply = channel_->WaitFor<wire::CancelReply>(call, deadline);
  const Status status = Explain(reply.ok() ? reply->status : reply.status(), "CANCEL");
  if (!status.ok()) return status;
  return std::move(reply->mapped);
}

void WorkerDirectory::Add(std::shared_ptr<WorkerLink> link) {
  MutexLock lock(mutex_);
  links_[link->worker()] = std::move(link);
}

void WorkerDirectory::Remove(WorkerId worker) {
  MutexLock lock(mutex_);
  links_.erase(worker);
}

Result<std::shared_ptr<WorkerLink>> WorkerDirectory::Find(WorkerId worker) const {
  MutexLock lock(mutex_);
  const auto it = links_.find(worker);
  if (it != links_.end()) return it->second;
  TORPOR_RETURN_IF_ERROR(ended_);
  return Unavailable("WORKER_GONE", "worker " + WorkerName(worker) + " is gone")
      .With("worker", WorkerName(worker));
}

void WorkerDirectory::EndAll(const Status& cause) {
  MutexLock lock(mutex_);
  ended_ = cause;
  for (const auto& [worker, link] : links_) link->channel().End(cause);
}

Status WorkerDirectory::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

}  // namespace torpor
