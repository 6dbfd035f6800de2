#include "daemon/memory/device_memory.h"

#include <algorithm>
#include <utility>

namespace torpor {

Bytes DeviceMemory::Measurement::other() const {
  return std::max(Bytes(0), total - free - resident() - context);
}

Result<std::shared_ptr<PhysicalAllocation>> DeviceMemory::Create(Bytes size) {
  ReaderLock gate(gate_);
  auto allocation = PhysicalAllocation::Create(driver_, size);
  if (allocation.ok()) {
    MutexLock lock(count_mutex_);
    created_ += size;
  }
  return allocation;
}

void DeviceMemory::Release(std::shared_ptr<PhysicalAllocation> allocation) {
  ReaderLock gate(gate_);
  const Bytes size = allocation->size();
  allocation.reset();
  MutexLock lock(count_mutex_);
  released_ += size;
}

Result<DeviceMemory::Measurement> DeviceMemory::Measure() {
  WriterLock gate(gate_);
  TORPOR_ASSIGN_OR_RETURN(const MemoryInfo info, driver_.GetMemoryInfo());
  Measurement measurement;
  measurement.total = info.total;
  measurement.free = info.free;
  measurement.context = std::max(Bytes(0), driver_.device().context);
  MutexLock lock(count_mutex_);
  measurement.created = created_;
  measurement.released = released_;
  return measurement;
}

}  // namespace torpor
