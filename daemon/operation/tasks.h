#ifndef TORPOR_DAEMON_OPERATION_TASKS_H_
#define TORPOR_DAEMON_OPERATION_TASKS_H_

#include <functional>
#include <thread>
#include <utility>

#include "lib/base/mutex.h"

namespace torpor {

// Runs each task on a thread of its own; the destructor waits for all. Thread-safe.
class Tasks {
 public:
  Tasks() = default;
  ~Tasks() { WaitForAll(); }
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  void Run(std::function<void()> task) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ++running_;
    }
    std::thread([this, task = std::move(task)]() mutable {
      task();
      task = nullptr;
      MutexLock lock(mutex_);
      if (--running_ == 0) idle_.NotifyAll();
    }).detach();
  }

  void WaitForAll() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (running_ != 0) idle_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar idle_;
  int running_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_TASKS_H_
