#include "client/work_guard.h"

#include <utility>

namespace torpor::client {

namespace {

// No `tags`: any.
bool Needs(const std::set<std::string>& set, const std::vector<std::string>& tags) {
  if (tags.empty()) return !set.empty();
  for (const std::string& tag : tags) {
    if (set.count(tag) > 0) return true;
  }
  return false;
}

std::string Join(const std::set<std::string>& tags) {
  std::string joined;
  for (const std::string& tag : tags) joined.append(joined.empty() ? "" : ",").append(tag);
  return joined;
}

}  // namespace

bool WorkGuard::NeedsSleepingTag(const std::vector<std::string>& tags) const {
  return Needs(asleep_, tags) || Needs(torn_, tags);
}

Status WorkGuard::Asleep(Code code, const char* message) const {
  return Status(code, "ASLEEP", message)
      .With("asleep_tags", AsleepTags())
      .With("operations", quiet_.size());
}

Status WorkGuard::CheckHope(const std::vector<std::string>& tags) const {
  if (Needs(lost_, tags)) {
    return Status(Code::kDataLoss, "SEGMENTS_LOST",
                  "the daemon was started again without segments that were asleep")
        .With("lost_tags", Join(lost_));
  }
  if (abandoned_ && NeedsSleepingTag(tags)) {
    return Unavailable("DAEMON_GONE", "the daemon has ended, and what was asleep is lost")
        .With("asleep_tags", AsleepTags());
  }
  return Status::Ok();
}

std::string WorkGuard::AsleepTags() const {
  std::set<std::string> tags = asleep_;
  tags.insert(torn_.begin(), torn_.end());
  return Join(tags);
}

Status WorkGuard::Begin(const std::vector<std::string>& tags, std::optional<TimePoint> deadline) {
  MutexLock lock(mutex_);
  const auto self = std::this_thread::get_id();
  const auto held = holders_.find(self);
  if (held != holders_.end()) {
    TORPOR_RETURN_IF_ERROR(CheckHope(tags));
    if (NeedsSleepingTag(tags)) {
      return Asleep(Code::kFailedPrecondition,
                    "a tag is asleep, and this thread cannot wait for it inside the work guard");
    }
    ++held->second.depth;
    return Status::Ok();
  }
  for (;;) {
    TORPOR_RETURN_IF_ERROR(CheckHope(tags));
    if (MayEnter(tags)) break;
    if (!deadline) {
      changed_.Wait(mutex_);
    } else if (!changed_.WaitUntil(mutex_, *deadline) && !MayEnter(tags)) {
      return Asleep(Code::kDeadlineExceeded,
                    "work may not start yet: the worker is asleep or quiet");
    }
  }
  holders_[self].depth = 1;
  return Status::Ok();
}

Status WorkGuard::End() {
  std::vector<std::function<void()>> deferred;
  {
    MutexLock lock(mutex_);
    const auto held = holders_.find(std::this_thread::get_id());
    if (held == holders_.end()) {
      return FailedPrecondition("WORK_GUARD_NOT_HELD", "this thread is not inside the work guard");
    }
    if (--held->second.depth > 0) return Status::Ok();
    deferred = std::move(held->second.deferred);
    holders_.erase(held);
    if (holders_.empty()) changed_.NotifyAll();
  }
  for (const std::function<void()>& action : deferred) action();
  return Status::Ok();
}

bool WorkGuard::HeldByThisThread() const {
  MutexLock lock(mutex_);
  return holders_.count(std::this_thread::get_id()) > 0;
}

bool WorkGuard::Defer(std::function<void()> action) {
  MutexLock lock(mutex_);
  const auto held = holders_.find(std::this_thread::get_id());
  if (held == holders_.end()) return false;
  held->second.deferred.push_back(std::move(action));
  return true;
}

Status WorkGuard::Quiet(OperationId operation, const std::function<bool()>& cancelled) {
  MutexLock lock(mutex_);
  quiet_.insert(operation);
  for (;;) {
    if (cancelled()) {
      quiet_.erase(operation);
      changed_.NotifyAll();
      return Aborted("OPERATION_CANCELLED", "the operation was cancelled")
          .With("operation", operation.value());
    }
    if (holders_.empty()) return Status::Ok();
    changed_.Wait(mutex_);
  }
}

void WorkGuard::Interrupt() {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

bool WorkGuard::TryExclude() {
  MutexLock lock(mutex_);
  if (!holders_.empty()) return false;
  ++exclusions_;
  return true;
}

void WorkGuard::EndExclude() {
  MutexLock lock(mutex_);
  --exclusions_;
  changed_.NotifyAll();
}

void WorkGuard::Release(OperationId operation) {
  MutexLock lock(mutex_);
  quiet_.erase(operation);
  changed_.NotifyAll();
}

void WorkGuard::SetAsleep(const wire::AsleepTags& asleep, uint64_t generation) {
  if (asleep.revision == 0) return;
  const std::pair<uint64_t, uint64_t> revision(generation, asleep.revision);
  MutexLock lock(mutex_);
  if (revision <= asleep_revision_) return;
  asleep_revision_ = revision;
  asleep_ = std::set<std::string>(asleep.tags.begin(), asleep.tags.end());
  changed_.NotifyAll();
}

void WorkGuard::Disconnect(const std::vector<std::string>& torn) {
  MutexLock lock(mutex_);
  quiet_.clear();
  torn_.insert(torn.begin(), torn.end());
  changed_.NotifyAll();
}

void WorkGuard::Mend() {
  MutexLock lock(mutex_);
  torn_.clear();
  changed_.NotifyAll();
}

void WorkGuard::Abandon(const std::vector<std::string>& torn) {
  {
    MutexLock lock(mutex_);
    abandoned_ = true;
  }
  Disconnect(torn);
}

void WorkGuard::SetLost(std::set<std::string> tags) {
  MutexLock lock(mutex_);
  lost_ = std::move(tags);
  changed_.NotifyAll();
}

std::set<std::string> WorkGuard::asleep() const {
  MutexLock lock(mutex_);
  return asleep_;
}

bool WorkGuard::Running() const {
  MutexLock lock(mutex_);
  return quiet_.empty() && asleep_.empty() && torn_.empty();
}

}  // namespace torpor::client
