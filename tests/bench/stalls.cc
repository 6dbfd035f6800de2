#include "tests/bench/stalls.h"

#include <algorithm>
#include <chrono>

namespace torpor::bench {
namespace {

constexpr auto kPause = std::chrono::microseconds(500);

std::string Nanoseconds(TimePoint time) { return std::to_string(time.time_since_epoch().count()); }

}  // namespace

Stalls::Stalls(const BenchDaemon& daemon, RoleProcess& query)
    : daemon_(daemon), query_(query), thread_([this] { Run(); }) {}

Stalls::~Stalls() {
  stop_ = true;
  thread_.join();
}

void Stalls::Run() {
  while (!stop_) {
    const TimePoint start = std::chrono::steady_clock::now();
    const Status status = daemon_.Usage().status();
    const TimePoint end = std::chrono::steady_clock::now();
    {
      MutexLock lock(mutex_);
      if (!status.ok()) error_ = status;
      calls_.emplace_back(start, end);
    }
    std::this_thread::sleep_for(kPause);
  }
}

Result<Stalls::Worst> Stalls::Between(TimePoint from, TimePoint to) {
  // What is under way will have ended.
  std::this_thread::sleep_for(milliseconds(20));
  Worst worst;
  TORPOR_ASSIGN_OR_RETURN(const std::string answer,
                          query_.Ask("worst " + Nanoseconds(from) + " " + Nanoseconds(to)));
  worst.other_process_ms = NumberOf(answer, "ms");
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(error_);
  for (const auto& [start, end] : calls_) {
    if (end < from || start > to) continue;
    worst.own_thread_ms = std::max(worst.own_thread_ms,
                                   std::chrono::duration<double, std::milli>(end - start).count());
  }
  return worst;
}

}  // namespace torpor::bench
