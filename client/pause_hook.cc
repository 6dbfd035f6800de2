#include "client/pause_hook.h"

#include <utility>

namespace torpor::client {

void PauseHook::Set(Callbacks callbacks) {
  MutexLock lock(mutex_);
  while (calling_) idle_.Wait(mutex_);
  callbacks_ = callbacks.pause ? std::make_shared<const Callbacks>(std::move(callbacks)) : nullptr;
  paused_ = false;
}

std::shared_ptr<const PauseHook::Callbacks> PauseHook::Enter(bool when_paused) {
  MutexLock lock(mutex_);
  while (calling_) idle_.Wait(mutex_);
  if (callbacks_ == nullptr || paused_ != when_paused) return nullptr;
  calling_ = true;
  return callbacks_;
}

void PauseHook::Leave(bool paused) {
  MutexLock lock(mutex_);
  calling_ = false;
  paused_ = paused;
  idle_.NotifyAll();
}

Status PauseHook::EnsurePaused() {
  const std::shared_ptr<const Callbacks> callbacks = Enter(false);
  if (callbacks == nullptr) return Status::Ok();
  const int refused = callbacks->pause();
  Leave(refused == 0);
  if (refused == 0) return Status::Ok();
  return FailedPrecondition("PAUSE_REFUSED", "the worker's pause callback refused")
      .With("returned", refused);
}

void PauseHook::EnsureRunning() {
  const std::shared_ptr<const Callbacks> callbacks = Enter(true);
  if (callbacks == nullptr) return;
  if (callbacks->resume) callbacks->resume();
  Leave(false);
}

}  // namespace torpor::client
