#ifndef TORPOR_LIB_CUDA_HOST_STREAM_H_
#define TORPOR_LIB_CUDA_HOST_STREAM_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// A point in a HostStream. Thread-safe.
class HostEvent {
 public:
  // Blocks until the work before the event is done; its error, if it had one.
  Status Wait() {
    MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);
    return status_;
  }
  void Complete(Status status) {
    MutexLock lock(mutex_);
    done_ = true;
    status_ = std::move(status);
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool done_ GUARDED_BY(mutex_) = false;
  Status status_ GUARDED_BY(mutex_);
};

// A queue of work that a thread of its own does in order. The first error stays: what was queued
// behind it is skipped, and every later event reports it. Thread-safe.
class HostStream {
 public:
  using Work = std::function<Status()>;

  HostStream();
  // Blocks until all work is done.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void Push(Work work);
  std::shared_ptr<HostEvent> Record();

 private:
  struct Item {
    Work work;                         // or
    std::shared_ptr<HostEvent> event;  // an event to complete
  };
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_HOST_STREAM_H_
