#include "daemon/operation/tasks.h"

#include <string>
#include <system_error>
#include <utility>

namespace torpor {

Result<std::thread> StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return ResourceExhausted("THREADS_EXHAUSTED",
                             std::string("the system gives no more threads: ") + error.what())
        .With("errno", error.code().value());
  }
}

Status Tasks::Run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    ++running_;
  }
  Result<std::thread> thread = start_([this, task = std::move(task)]() mutable {
    task();
    task = nullptr;
    Ended();
  });
  if (!thread.ok()) {
    Ended();
    return thread.status();
  }
  thread->detach();
  return Status::Ok();
}

void Tasks::WaitForAll() {
  MutexLock lock(mutex_);
  while (running_ != 0) idle_.Wait(mutex_);
}

void Tasks::Ended() {
  MutexLock lock(mutex_);
  if (--running_ == 0) idle_.NotifyAll();
}

}  // namespace torpor
