#include "client/reclaimer.h"

#include <iterator>
#include <memory>
#include <optional>
#include <utility>

namespace torpor::client {

void Reclaimer::Keep(Leftover leftover) {
  MutexLock lock(mutex_);
  leftovers_.push_back(std::move(leftover));
  any_ = true;
}

Status Reclaimer::Reclaim() {
  if (!any_ || !guard_.TryExclude()) return Status::Ok();
  std::vector<Leftover> leftovers;
  {
    MutexLock lock(mutex_);
    leftovers.swap(leftovers_);
    any_ = false;
  }
  std::vector<Leftover> unmapped;
  Status first = driver_.Synchronize();
  const bool synchronized = first.ok();
  for (Leftover& leftover : leftovers) {
    if (synchronized && !FindExtents(leftover)) {
      MutexLock lock(mutex_);
      postponed_.push_back(std::move(leftover));
      any_postponed_ = true;
      continue;
    }
    const std::shared_ptr<Arena> arena = arenas_.Find(leftover.segment.tag);
    Status status = first;
    if (synchronized) status = arena == nullptr ? Status::Ok() : arena->Unmap(leftover.extents);
    if (first.ok()) first = status;
    if (!status.ok()) {
      Keep(std::move(leftover));
      continue;
    }
    if (leftover.segment.lost && arena != nullptr) arena->Disown(leftover.segment.offset);
    unmapped.push_back(std::move(leftover));
  }
  guard_.EndExclude();
  for (const Leftover& leftover : unmapped) {
    const LinkPtr link = WhoWaits(leftover);
    if (link == nullptr) continue;
    const Status told = TellFreed(leftover.segment.id, link);
    if (first.ok()) first = told;
  }
  // While a thread captures a graph, waiting is all that is wrong.
  return first.reason() == "STREAM_CAPTURE_ACTIVE" ? Status::Ok() : first;
}

bool Reclaimer::FindExtents(Leftover& leftover) const {
  const Segment& segment = leftover.segment;
  if (!leftover.extents.empty()) return true;
  const std::shared_ptr<Arena> arena = arenas_.Find(segment.tag);
  if (arena == nullptr) return true;
  std::optional<std::vector<wire::Extent>> extents =
      segments_.WithoutSegments(segment, arena->HeldIn(segment.offset, segment.size));
  if (!extents) return false;
  leftover.extents = *std::move(extents);
  return true;
}

LinkPtr Reclaimer::WhoWaits(const Leftover& leftover) {
  if (leftover.told != nullptr || !leftover.segment.lost) return leftover.told;
  MutexLock lock(mutex_);
  return last_link_;
}

Status Reclaimer::TellFreed(SegmentId segment, const LinkPtr& told) {
  const auto reply =
      Connection::AskOn<wire::StatusReply>(told, wire::Type::kFreed, wire::Freed{segment});
  if (reply.ok()) return reply->message.status;
  if (!Connection::Broken(reply.status())) return reply.status();
  // The next daemon, if there is one, may or may not wait for it.
  MutexLock lock(mutex_);
  if (last_link_->generation() > told->generation()) {
    last_link_->Tell(wire::Type::kFreed, wire::Freed{segment});
  } else {
    untold_.push_back(segment);
  }
  return Status::Ok();
}

void Reclaimer::OnAllocationEnd() {
  if (!any_postponed_) return;
  {
    MutexLock lock(mutex_);
    std::move(postponed_.begin(), postponed_.end(), std::back_inserter(leftovers_));
    postponed_.clear();
    any_postponed_ = false;
    any_ = !leftovers_.empty();
  }
  (void)Reclaim();
}

void Reclaimer::OnWelcome(const LinkPtr& link) {
  MutexLock lock(mutex_);
  last_link_ = link;
  for (const SegmentId segment : std::exchange(untold_, {})) {
    link->Tell(wire::Type::kFreed, wire::Freed{segment});
  }
}

}  // namespace torpor::client
