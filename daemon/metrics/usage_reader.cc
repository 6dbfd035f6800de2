#include "daemon/metrics/usage_reader.h"

#include <algorithm>
#include <utility>

#include "daemon/operation/tasks.h"

namespace torpor::metrics {

Status UsageReader::Start(Ask ask) {
  {
    MutexLock lock(mutex_);
    running_ = true;
  }
  TORPOR_ASSIGN_OR_RETURN(thread_, StartThread([this, ask = std::move(ask)] { Run(ask); }));
  return Status::Ok();
}

void UsageReader::Stop() {
  {
    MutexLock lock(mutex_);
    running_ = false;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::optional<UsageReport> UsageReader::Read(Duration patience) {
  const TimePoint until = Clock::Real().Now() + patience;
  MutexLock lock(mutex_);
  // One that has begun already may be of a moment ago.
  const uint64_t mine = begun_ + 1;
  wanted_ = std::max(wanted_, mine);
  changed_.NotifyAll();
  while (running_ && answered_ < mine) {
    if (!changed_.WaitUntil(mutex_, until) && Clock::Real().Now() >= until) break;
  }
  return answered_ >= mine ? answer_ : std::nullopt;
}

void UsageReader::Run(const Ask& ask) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (running_ && wanted_ <= begun_) changed_.Wait(mutex_);
      if (!running_) return;
      ++begun_;
    }
    Result<UsageReport> answer = ask();
    MutexLock lock(mutex_);
    answer_ = answer.ok() ? std::optional<UsageReport>(*std::move(answer)) : std::nullopt;
    answered_ = begun_;
    changed_.NotifyAll();
  }
}

}  // namespace torpor::metrics
