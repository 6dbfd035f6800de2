#include "daemon/memory/extent.h"

#include <cassert>
#include <utility>

#include "lib/base/descriptors.h"

namespace torpor {

Result<std::shared_ptr<Extent>> Extent::Create(DeviceMemory& memory, ExtentId id, Bytes offset,
                                               Bytes size, Draw draw) {
  assert(draw.size() == size);
  static DescriptorGuard descriptors(kDescriptorsLeftByExtents);
  TORPOR_RETURN_IF_ERROR(descriptors.Check());
  TORPOR_ASSIGN_OR_RETURN(auto allocation, memory.Create(size));
  draw.MarkCreated();
  Result<UniqueFd> fd = allocation->Export();
  if (!fd.ok()) {
    memory.Release(std::move(allocation));
    return fd.status();
  }
  return std::shared_ptr<Extent>(
      new Extent(memory, id, offset, size, std::move(allocation), *std::move(fd), std::move(draw)));
}

Result<std::shared_ptr<Extent>> Extent::Import(DeviceMemory& memory, ExtentId id, Bytes offset,
                                               Bytes size, Draw draw, UniqueFd fd) {
  assert(draw.size() == size);
  TORPOR_ASSIGN_OR_RETURN(auto allocation, memory.Import(fd.get(), size));
  draw.MarkCreated();
  return std::shared_ptr<Extent>(
      new Extent(memory, id, offset, size, std::move(allocation), std::move(fd), std::move(draw)));
}

Extent::~Extent() {
  {
    MutexLock lock(mutex_);
    mapping_.reset();
  }
  fd_.Reset();
  memory_.Release(std::move(allocation_));
}

void Extent::UnmapForCopy() {
  MutexLock lock(mutex_);
  mapping_.reset();
}

void Extent::Surrender() {
  MutexLock lock(mutex_);
  draw_.Surrender();
}

Result<DeviceAddress> Extent::MapForCopy() {
  MutexLock lock(mutex_);
  if (mapping_ == nullptr) {
    TORPOR_ASSIGN_OR_RETURN(auto reservation, AddressReservation::Create(memory_.driver(), size_));
    TORPOR_ASSIGN_OR_RETURN(
        mapping_, ScopedMapping::Create(memory_.driver(), std::move(reservation), Bytes(0),
                                        allocation_, Access::kReadWrite));
  }
  return mapping_->address();
}

}  // namespace torpor
