#ifndef TORPOR_DAEMON_POOL_HOST_POOL_H_
#define TORPOR_DAEMON_POOL_HOST_POOL_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/memory/range_set.h"
#include "daemon/pool/pinner.h"
#include "daemon/pool/pool_memory.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Pinned host memory with a fixed budget, shared by all workers of the daemon: slabs, whose
// addresses are reserved at the start and which are pinned, each by one registration, in the
// background or when they are asked for, and kept until the end. Blocks are handed out at once,
// pinned or not: whoever copies to or from a block waits for AwaitPinned first, and nothing is to
// be written to it before. A copy must not cross two registrations: a block never crosses a slab,
// and slabs never touch, so that blocks which continue each other are of one slab. Thread-safe;
// `driver` must outlive the pool, and the pool every block.
class HostPool {
 public:
  static constexpr Bytes kUnit = KiB(64);  // sizes of blocks are rounded up to it
  static constexpr Bytes kSlab = MiB(64);

  struct Block {
    std::byte* data = nullptr;
    Bytes size{};
  };
  struct Stats {
    Bytes budget{};
    Bytes pinned{};
    Bytes used{};
    std::string kind;      // what it is made of, as "tmpfs, huge pages"
    Bytes demanded{};      // asked for and not yet pinned
    bool pinning = false;  // `pinned` grows
    Bytes refused{};       // what the system did not let be pinned at the last try
    Status last_error;     // why
  };

  // `memory` in slabs of `slab` bytes, of which a block's unit must be a divisor.
  HostPool(Driver& driver, std::unique_ptr<PoolMemory> memory, Pinner::Options options);
  // Anonymous memory of `budget` bytes, rounded down to kUnit, in slabs of kSlab; aborts if there
  // are no addresses for it.
  HostPool(Driver& driver, Bytes budget);
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Blocks of `size` bytes in all, all or none, where pinning is done or comes next. Every block
  // but the last is a multiple of `unit` (a multiple of kUnit and a divisor of kSlab), unless only
  // smaller remains are left. Does not block. RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED.
  Result<std::vector<Block>> Allocate(Bytes size, Bytes unit) EXCLUDES(mutex_);
  void Free(const std::vector<Block>& blocks) EXCLUDES(mutex_);
  // Blocks at places of the pool's file that have their bytes already. What lies there is never
  // given back to the system, pinned or not.
  //   INVALID_ARGUMENT BAD_BLOCK: outside the pool, across a slab's end, or taken; nothing is taken
  Result<std::vector<Block>> TakeAt(const std::vector<std::pair<Bytes, Bytes>>& places)
      EXCLUDES(mutex_);

  // Asks that what lies under `blocks` be pinned next, in their order; does not block.
  void Demand(const std::vector<Block>& blocks);
  // Demands what lies under a block, or a part of one, and blocks until it is pinned. `interrupt`,
  // which may be null, is called every few milliseconds; its error ends the wait.
  //   the error of `interrupt`; RESOURCE_EXHAUSTED HOST_MEMORY_EXHAUSTED (the system gives no
  //   more), THREADS_EXHAUSTED; what RegisterHost says. Asked again, it tries again.
  Status AwaitPinned(const std::byte* data, Bytes size, const std::function<Status()>& interrupt);
  bool IsPinned(const std::byte* data, Bytes size) const;
  // Pins everything, in the background and without making others wait.
  void StartPinning() { pinner_.StartBackground(); }
  // Keeps the background from the driver for a moment (Pinner::Yield).
  void Yield() { pinner_.Yield(); }

  Stats stats() const EXCLUDES(mutex_);
  const PoolMemory& memory() const { return *memory_; }

 private:
  // Takes what fits from the first `slabs` slabs of the order; false and nothing taken if it is not
  // enough.
  bool TakeFromSlabs(size_t slabs, Bytes size, Bytes unit, std::vector<Block>& blocks)
      REQUIRES(mutex_);
  void FreeLocked(const std::vector<Block>& blocks) REQUIRES(mutex_);

  const std::unique_ptr<PoolMemory> memory_;
  const Bytes budget_;
  Pinner pinner_;
  mutable Mutex mutex_;
  std::vector<RangeSet> free_ GUARDED_BY(mutex_);  // by slab
  Pinner::Order order_ GUARDED_BY(mutex_);
  Bytes used_ GUARDED_BY(mutex_){};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_HOST_POOL_H_
