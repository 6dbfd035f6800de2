#ifndef TORPOR_DAEMON_OPERATION_TASKS_H_
#define TORPOR_DAEMON_OPERATION_TASKS_H_

#include <functional>
#include <thread>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// RESOURCE_EXHAUSTED THREADS_EXHAUSTED; `run` was then not run and is gone.
Result<std::thread> StartThread(std::function<void()> run);

// Runs each task on a thread of its own; the destructor waits for all. Thread-safe.
class Tasks {
 public:
  using Starter = std::function<Result<std::thread>(std::function<void()>)>;

  explicit Tasks(Starter start = StartThread) : start_(std::move(start)) {}
  ~Tasks() { WaitForAll(); }
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  // Not OK: StartThread's status, and the task was neither run nor kept.
  [[nodiscard]] Status Run(std::function<void()> task) EXCLUDES(mutex_);

  void WaitForAll() EXCLUDES(mutex_);

 private:
  void Ended() EXCLUDES(mutex_);

  const Starter start_;
  Mutex mutex_;
  CondVar idle_;
  int running_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_OPERATION_TASKS_H_
