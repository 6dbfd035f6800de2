#include "lib/cuda/host_stream.h"

namespace torpor {

HostStream::HostStream() : thread_([this] { Run(); }) {}

HostStream::~HostStream() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
}

void HostStream::Push(Work work) {
  MutexLock lock(mutex_);
  queue_.push_back({std::move(work), nullptr});
  changed_.NotifyOne();
}

std::shared_ptr<HostEvent> HostStream::Record() {
  auto event = std::make_shared<HostEvent>();
  MutexLock lock(mutex_);
  queue_.push_back({nullptr, event});
  changed_.NotifyOne();
  return event;
}

void HostStream::Run() {
  Status error;
  for (;;) {
    Item item;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closing_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    if (item.event != nullptr) {
      item.event->Complete(error);
    } else if (error.ok()) {
      error = item.work();
    }
  }
}

}  // namespace torpor
