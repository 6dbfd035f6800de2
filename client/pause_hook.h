#ifndef TORPOR_CLIENT_PAUSE_HOOK_H_
#define TORPOR_CLIENT_PAUSE_HOOK_H_

#include <functional>
#include <memory>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor::client {

// The application's pause and resume callbacks, called in turn and never both at once. Thread-safe.
class PauseHook {
 public:
  struct Callbacks {
    std::function<int()> pause;  // not 0: refused
    std::function<void()> resume;
  };

  // Replaces the callbacks; `pause` empty: none from now on. Blocks while one runs (so never from
  // inside one): the old ones are not called any more on return. The new ones count as not paused.
  void Set(Callbacks callbacks);

  // Calls `pause` unless it is the last that was called. No lock is held meanwhile.
  // FAILED_PRECONDITION PAUSE_REFUSED: as before.
  Status EnsurePaused();
  // Calls `resume` if `pause` was called last.
  void EnsureRunning();

 private:
  std::shared_ptr<const Callbacks> Enter(bool when_paused);
  void Leave(bool paused);

  Mutex mutex_;
  CondVar idle_;
  std::shared_ptr<const Callbacks> callbacks_ GUARDED_BY(mutex_);
  bool paused_ GUARDED_BY(mutex_) = false;
  bool calling_ GUARDED_BY(mutex_) = false;
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_PAUSE_HOOK_H_
