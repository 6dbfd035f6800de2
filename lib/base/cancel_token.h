#ifndef TORPOR_LIB_BASE_CANCEL_TOKEN_H_
#define TORPOR_LIB_BASE_CANCEL_TOKEN_H_

#include <atomic>
#include <functional>
#include <list>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// Tells work that nobody wants it any more; for good. Thread-safe.
//
// Who waits on a condition variable registers a Callback that wakes it, outside the mutex it waits
// with, and looks at cancelled() in its loop.
class CancelToken {
 public:
  CancelToken() = default;
  CancelToken(const CancelToken&) = delete;
  CancelToken& operator=(const CancelToken&) = delete;

  // The first reason stays.
  void Cancel(Status why) EXCLUDES(mutex_);
  // Takes no lock.
  bool cancelled() const { return cancelled_; }
  // OK, or why it was cancelled.
  Status status() const EXCLUDES(mutex_);

  // Has a function called once, by Cancel, or at once if that has happened. The function must not
  // use this token, nor destroy a Callback of it. On return of the destructor it is not running.
  class Callback {
   public:
    // Nothing happens where `token` is null.
    Callback(const CancelToken* token, std::function<void()> function);
    ~Callback();
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;

   private:
    const CancelToken* const token_;
    std::list<std::function<void()>>::iterator position_;
  };

 private:
  mutable Mutex mutex_;  // held while callbacks run
  mutable std::list<std::function<void()>> callbacks_ GUARDED_BY(mutex_);
  Status why_ GUARDED_BY(mutex_);
  std::atomic<bool> cancelled_{false};
};

// OK where `token` is null.
inline Status CheckCancelled(const CancelToken* token) {
  return token != nullptr && token->cancelled() ? token->status() : Status::Ok();
}

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_CANCEL_TOKEN_H_
