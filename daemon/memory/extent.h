#ifndef TORPOR_DAEMON_MEMORY_EXTENT_H_
#define TORPOR_DAEMON_MEMORY_EXTENT_H_

#include <cstdint>
#include <memory>

#include "daemon/admission/admission.h"
#include "daemon/memory/device_memory.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"

namespace torpor {

// The most that one extent holds. Creating, exporting, mapping and releasing cost by the extent,
// and more while copies run (docs/design.md).
constexpr Bytes kMaxExtent = GiB(1);

// Those of RLIMIT_NOFILE that extents leave to connections and everything else.
constexpr int64_t kDescriptorsLeftByExtents = 48;

// One physical handle, mapped whole at `offset` of an arena: the unit of creating, mapping, handing
// over and releasing. Its descriptor is exported once, here; only duplicates of it are shared.
// Destroying the extent releases the daemon's mapping, descriptor and handle; the memory is free
// when the workers that map it have let go, too. Thread-safe; `memory` must outlive it.
class Extent {
 public:
  // `draw` is of `size`, neither more nor less, which is what admission counts by. It is returned
  // when the extent has ended. RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED before the process has
  // none left.
  static Result<std::shared_ptr<Extent>> Create(DeviceMemory& memory, ExtentId id, Bytes offset,
                                                Bytes size, Draw draw);
  // Of a daemon before this one, which has exported it as `fd`. `draw` likewise.
  static Result<std::shared_ptr<Extent>> Import(DeviceMemory& memory, ExtentId id, Bytes offset,
                                                Bytes size, Draw draw, UniqueFd fd);
  ~Extent();
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  ExtentId id() const { return id_; }
  Bytes offset() const { return offset_; }
  Bytes size() const { return size_; }
  Bytes end() const { return offset_ + size_; }
  int fd() const { return fd_.get(); }

  // The address of the daemon's own mapping, made at the first call and kept. Blocks for the
  // driver.
  Result<DeviceAddress> MapForCopy() EXCLUDES(mutex_);

  // Ends that mapping, which nothing may use any more.
  void UnmapForCopy() EXCLUDES(mutex_);

  // Its memory leaves with a sleep: the promise it was drawn from does not get it back.
  void Surrender() EXCLUDES(mutex_);

 private:
  Extent(DeviceMemory& memory, ExtentId id, Bytes offset, Bytes size,
         std::shared_ptr<PhysicalAllocation> allocation, UniqueFd fd, Draw draw)
      : memory_(memory),
        id_(id),
        offset_(offset),
        size_(size),
        allocation_(std::move(allocation)),
        fd_(std::move(fd)),
        draw_(std::move(draw)) {}

  DeviceMemory& memory_;
  const ExtentId id_;
  const Bytes offset_;
  const Bytes size_;
  std::shared_ptr<PhysicalAllocation> allocation_;
  UniqueFd fd_;
  Mutex mutex_;
  Draw draw_ GUARDED_BY(mutex_);
  std::shared_ptr<ScopedMapping> mapping_ GUARDED_BY(mutex_);
};

using ExtentPtr = std::shared_ptr<Extent>;

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_EXTENT_H_
