#include "daemon/session/worker_link.h"

#include <algorithm>
#include <utility>

#include "daemon/memory/inventory.h"

namespace torpor {
namespace {

// Each descriptor in flight counts against the limits of both processes.
constexpr size_t kExtentsPerMap = 200;

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
    return DeadlineExceeded("WORKER_SILENT", "worker " + WorkerName(worker_) +
                                                 " did not answer " + what + " in time")
        .With("worker", WorkerName(worker_))
        .With("request", what);
  }
  if (!status.ok()) status.Add("worker", WorkerName(worker_));
  return status;
}

Status WorkerLink::Pending::Wait(TimePoint deadline, const CancelToken* cancel) {
  Status first = failed_;
  for (const wire::Channel::CallPtr& call : calls_) {
    const auto reply = link_->channel_->WaitFor<wire::StatusReply>(call, deadline, cancel);
    const Status status = reply.ok() ? reply->status : reply.status();
    if (first.ok()) first = status;
  }
  calls_.clear();
  return link_->Explain(first, what_);
}

Status WorkerLink::Quiesce(OperationId operation, bool own, TimePoint deadline,
                           const CancelToken* cancel) {
  const auto reply = channel_->Ask<wire::StatusReply>(
      wire::Type::kQuiesce, wire::QuiesceRequest{operation, own}, deadline, cancel);
  return Explain(reply.ok() ? reply->status : reply.status(), "QUIESCE");
}

WorkerLink::Pending WorkerLink::StartMap(OperationId operation, const std::string& tag,
                                         const std::vector<ExtentPtr>& extents) {
  Pending pending;
  pending.link_ = this;
  pending.what_ = "MAP";
  for (size_t from = 0; from < extents.size() && pending.failed_.ok(); from += kExtentsPerMap) {
    const auto begin = extents.begin() + static_cast<ptrdiff_t>(from);
    const auto end =
        extents.begin() + static_cast<ptrdiff_t>(std::min(extents.size(), from + kExtentsPerMap));
    std::vector<int> fds;
    for (auto it = begin; it != end; ++it) fds.push_back((*it)->fd());
    auto call = channel_->Start(
        wire::Type::kMap, wire::Encode(wire::MapRequest{operation, tag, Describe(begin, end)}), fds);
    if (call.ok()) {
      pending.calls_.push_back(*std::move(call));
    } else {
      pending.failed_ = call.status();
    }
  }
  return pending;
}

WorkerLink::Pending WorkerLink::StartUnmap(OperationId operation, const std::string& tag,
                                           const std::vector<ExtentPtr>& extents) {
  Pending pending;
  pending.link_ = this;
  pending.what_ = "UNMAP";
  auto call = channel_->Start(wire::Type::kUnmap,
                              wire::Encode(wire::UnmapRequest{
                                  operation, tag, Describe(extents.begin(), extents.end())}));
  if (call.ok()) {
    pending.calls_.push_back(*std::move(call));
  } else {
    pending.failed_ = call.status();
  }
  return pending;
}

Status WorkerLink::Resume(OperationId operation, const std::vector<std::string>& asleep,
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
  return Unavailable("WORKER_GONE", "worker " + WorkerName(worker) + " is gone")
      .With("worker", WorkerName(worker));
}

void WorkerDirectory::EndAll(const Status& cause) {
  MutexLock lock(mutex_);
  for (const auto& [worker, link] : links_) link->channel().End(cause);
}

}  // namespace torpor
