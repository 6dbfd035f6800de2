#include "daemon/memory/device_memory.h"

#include <algorithm>
#include <utility>

namespace torpor {
namespace {

constexpr int kAttempts = 4;

}  // namespace

Bytes DeviceMemory::Measurement::resident() const { return std::max(Bytes(0), created - released); }

Bytes DeviceMemory::Measurement::other() const {
  return std::max(Bytes(0), total - free - resident() - context);
}

DeviceMemory::Counts DeviceMemory::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void DeviceMemory::Begin() {
  const TimePoint until = Clock::Real().Now() + kPatience;
  while (settling_ != 0 && Clock::Real().Now() < until) settled_.WaitUntil(mutex_, until);
  ++counts_.under_way;
  ++counts_.begun;
}

void DeviceMemory::End() {
  if (--counts_.under_way == 0) idle_.NotifyAll();
}

Result<std::shared_ptr<PhysicalAllocation>> DeviceMemory::Create(Bytes size) {
  return Make(size, [&] { return PhysicalAllocation::Create(driver_, size); });
}

Result<std::shared_ptr<PhysicalAllocation>> DeviceMemory::Import(int fd, Bytes size) {
  return Make(size, [&] { return PhysicalAllocation::Import(driver_, fd, size); });
}

template <typename How>
Result<std::shared_ptr<PhysicalAllocation>> DeviceMemory::Make(Bytes size, How how) {
  {
    MutexLock lock(mutex_);
    Begin();
    counts_.creating += size;
  }
  auto allocation = how();
  MutexLock lock(mutex_);
  counts_.creating -= size;
  if (allocation.ok()) counts_.created += size;
  End();
  return allocation;
}

void DeviceMemory::Release(std::shared_ptr<PhysicalAllocation> allocation) {
  const Bytes size = allocation->size();
  {
    MutexLock lock(mutex_);
    Begin();
    counts_.releasing += size;
  }
  allocation.reset();
  MutexLock lock(mutex_);
  counts_.releasing -= size;
  counts_.released += size;
  End();
}

Result<DeviceMemory::Measurement> DeviceMemory::Measure(Accuracy accuracy) {
  if (accuracy == Accuracy::kAtOnce) return MeasureWithin(kAttempts);
  {
    const TimePoint until = Clock::Real().Now() + kPatience;
    MutexLock lock(mutex_);
    ++settling_;
    while (counts_.under_way != 0 && Clock::Real().Now() < until) idle_.WaitUntil(mutex_, until);
  }
  Result<Measurement> measurement = MeasureWithin(1);
  MutexLock lock(mutex_);
  if (--settling_ == 0) settled_.NotifyAll();
  return measurement;
}

Result<DeviceMemory::Measurement> DeviceMemory::MeasureWithin(int attempts) {
  for (int attempt = 1;; ++attempt) {
    const Counts before = counts();
    TORPOR_ASSIGN_OR_RETURN(const MemoryInfo info, driver_.GetMemoryInfo());
    const Counts after = counts();
    const bool quiet = before.under_way == 0 && before.begun == after.begun;
    if (!quiet && attempt < attempts) continue;
    Measurement measurement;
    measurement.total = info.total;
    measurement.free = info.free;
    measurement.context = std::max(Bytes(0), driver_.device().context);
    measurement.created = before.created;
    measurement.released = after.released + after.releasing;
    measurement.unsettled =
        after.created + after.creating - before.created + (measurement.released - before.released);
    return measurement;
  }
}

}  // namespace torpor
