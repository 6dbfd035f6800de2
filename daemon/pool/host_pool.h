#ifndef TORPOR_DAEMON_POOL_HOST_POOL_H_
#define TORPOR_DAEMON_POOL_HOST_POOL_H_

#include <map>
#include <memory>
#include <vector>

#include "daemon/memory/range_set.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Pinned host memory with a fixed budget, shared by all workers of the daemon: slabs, each mapped,
// touched and registered by itself when it is first needed, and kept until the end. A copy must not
// cross two registrations: a block never crosses a slab, and slabs never touch, so that blocks which
// continue each other are of one slab. Thread-safe; `driver` must outlive the pool, and the pool
// every block.
class HostPool {
 public:
  static constexpr Bytes kUnit = KiB(64);  // sizes of blocks are rounded up to it
  static constexpr Bytes kSlab = MiB(256);

  struct Block {
    std::byte* data = nullptr;
    Bytes size{};
  };
  struct Stats {
    Bytes budget{};
    Bytes pinned{};
    Bytes used{};
  };

  // `budget` is rounded down to kUnit.
  HostPool(Driver& driver, Bytes budget);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Blocks of `size` bytes in all; all or none. Every block but the last is a multiple of `unit` (a
  // multiple of kUnit and a divisor of kSlab), unless only smaller remains are left. May block to
  // pin new slabs, which stay even if it then fails.
  //   RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED, HOST_MEMORY_EXHAUSTED (the system gives no more), or
  //   what RegisterHost says
  Result<std::vector<Block>> Allocate(Bytes size, Bytes unit) EXCLUDES(mutex_, growth_mutex_);
  void Free(const std::vector<Block>& blocks) EXCLUDES(mutex_);

  Stats stats() const EXCLUDES(mutex_);

 private:
  struct Slab {
    std::byte* data = nullptr;
    Bytes size{};
    void* map = nullptr;  // what was mapped for it, MapSize(size) bytes
    RangeSet free;
  };

  // Takes what fits from the slabs there are; false and nothing taken if it is not enough.
  bool TakeFromSlabs(Bytes size, Bytes unit, std::vector<Block>& blocks) REQUIRES(mutex_);
  void FreeLocked(const std::vector<Block>& blocks) REQUIRES(mutex_);
  Status Grow(Bytes size) REQUIRES(growth_mutex_) EXCLUDES(mutex_);

  static Bytes MapSize(Bytes slab);

  Driver& driver_;
  const Bytes budget_;
  Mutex growth_mutex_;  // held while a slab is pinned
  mutable Mutex mutex_;
  std::map<std::byte*, Slab> slabs_ GUARDED_BY(mutex_);  // by address
  Bytes pinned_ GUARDED_BY(mutex_){};
  Bytes used_ GUARDED_BY(mutex_){};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_HOST_POOL_H_
