#ifndef TORPOR_LIB_BASE_CANCEL_TOKEN_H_
#define TORPOR_LIB_BASE_CANCEL_TOKEN_H_

#include <atomic>
#include <functional>
#include <list>
#include <thread>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// Tells work that nobody wants it any more; for good. Thread-safe; must outlive Cancel.
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

  // Has a function called once, by Cancel, or by the constructor if that has happened, without any
  // lock. The destructor waits for a call under way, unless it is that call which destroys.
  class Callback {
   public:
    // Nothing happens where `token` is null.
    Callback(const CancelToken* token, std::function<void()> function);
    ~Callback();
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;

   private:
    friend class CancelToken;
    const CancelToken* const token_;
    std::function<void()> function_;
  };

 private:
  void Add(Callback* callback) const EXCLUDES(mutex_);
  void Remove(Callback* callback) const EXCLUDES(mutex_);

  mutable Mutex mutex_;
  mutable CondVar called_;
  mutable std::list<Callback*> callbacks_ GUARDED_BY(mutex_);  // to be called
  Callback* calling_ GUARDED_BY(mutex_) = nullptr;             // by `caller_`; may be gone
  std::thread::id caller_ GUARDED_BY(mutex_);
  Status why_ GUARDED_BY(mutex_);
  std::atomic<bool> cancelled_{false};
};

// OK where `token` is null.
inline Status CheckCancelled(const CancelToken* token) {
  return token != nullptr && token->cancelled() ? token->status() : Status::Ok();
}

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_CANCEL_TOKEN_H_
