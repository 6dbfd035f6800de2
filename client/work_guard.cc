#include "client/work_guard.h"

#include <utility>

namespace torpor::client {

bool WorkGuard::NeedsSleepingTag(const std::vector<std::string>& tags) const {
  if (tags.empty()) return !asleep_.empty();
  for (const std::string& tag : tags) {
    if (asleep_.count(tag) > 0) return true;
  }
  return false;
}

Status WorkGuard::Asleep(Code code, const char* message) const {
  return Status(code, "ASLEEP", message)
      .With("asleep_tags", AsleepTags())
      .With("operations", quiet_.size());
}

Status WorkGuard::Lost() const {
  return Unavailable("DAEMON_GONE", "the daemon has ended, and what was asleep is lost")
      .With("asleep_tags", AsleepTags());
}

std::string WorkGuard::AsleepTags() const {
  std::string tags;
  for (const std::string& tag : asleep_) tags.append(tags.empty() ? "" : ",").append(tag);
  return tags;
}

Status WorkGuard::Begin(const std::vector<std::string>& tags, std::optional<TimePoint> deadline) {
  MutexLock lock(mutex_);
  const auto self = std::this_thread::get_id();
  const auto held = holders_.find(self);
  if (held != holders_.end()) {
    if (NeedsSleepingTag(tags)) {
      if (abandoned_) return Lost();
      return Asleep(Code::kFailedPrecondition,
                    "a tag is asleep, and this thread cannot wait for it inside the work guard");
    }
    ++held->second.depth;
    return Status::Ok();
  }
  while (!MayEnter(tags)) {
    if (abandoned_ && NeedsSleepingTag(tags)) return Lost();
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

void WorkGuard::SetAsleep(const wire::AsleepTags& asleep) {
  MutexLock lock(mutex_);
  if (asleep.revision <= asleep_revision_) return;
  asleep_revision_ = asleep.revision;
  asleep_ = std::set<std::string>(asleep.tags.begin(), asleep.tags.end());
  changed_.NotifyAll();
}

void WorkGuard::Abandon(const std::vector<std::string>& asleep) {
  MutexLock lock(mutex_);
  abandoned_ = true;
  quiet_.clear();
  asleep_.insert(asleep.begin(), asleep.end());
  changed_.NotifyAll();
}

bool WorkGuard::Running() const {
  MutexLock lock(mutex_);
  return quiet_.empty() && asleep_.empty();
}

}  // namespace torpor::client
