#include "daemon/pool/host_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <thread>

namespace torpor {
namespace {

constexpr int64_t kPage = 4096;
constexpr Bytes kHugePage = MiB(2);

// Touches every page, from several threads: one alone needs seconds for what a sleep does in
// milliseconds.
void Touch(std::byte* data, Bytes size) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = std::min<int64_t>(std::min(16u, cores), size / MiB(16) + 1);
  const Bytes part = RoundUp(Bytes(size.value() / threads), MiB(2));
  std::vector<std::thread> running;
  for (Bytes from{}; from < size; from += part) {
    const auto touch = [data, from, to = std::min(size, from + part)] {
      for (int64_t i = from.value(); i < to.value(); i += kPage) data[i] = std::byte{0};
    };
    try {
      running.emplace_back(touch);
    } catch (const std::system_error&) {  // no more threads
      touch();
    }
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace

HostPool::HostPool(Driver& driver, Bytes budget)
    : driver_(driver), budget_(budget - budget % kUnit) {}

HostPool::~HostPool() {
  MutexLock lock(mutex_);
  for (const auto& [data, slab] : slabs_) {
    (void)driver_.UnregisterHost(data);
    ::munmap(slab.map, MapSize(slab.size).size());
  }
}

Result<std::vector<HostPool::Block>> HostPool::Allocate(Bytes size, Bytes unit) {
  size = RoundUp(size, kUnit);
  std::vector<Block> blocks;
  {
    MutexLock lock(mutex_);
    if (TakeFromSlabs(size, unit, blocks)) return blocks;
  }
  MutexLock growing(growth_mutex_);
  for (;;) {
    Bytes missing = size;
    {
      MutexLock lock(mutex_);
      if (TakeFromSlabs(size, unit, blocks)) return blocks;
      // Scattered remains serve when nothing else is left.
      if (pinned_ >= budget_ && TakeFromSlabs(size, kUnit, blocks)) return blocks;
      if (budget_ - used_ < size || pinned_ >= budget_) {
        return ResourceExhausted("HOST_POOL_EXHAUSTED",
                                 "the host pool has no room: " + FormatBytes(size) + " asked, " +
                                     FormatBytes(budget_ - used_) + " of " +
                                     FormatBytes(budget_) + " left")
            .With("requested_bytes", size.value())
            .With("available_bytes", (budget_ - used_).value())
            .With("budget_bytes", budget_.value());
      }
      missing = std::min(budget_ - pinned_, kSlab);
    }
    if (Status grown = Grow(missing); !grown.ok()) {
      MutexLock lock(mutex_);
      if (TakeFromSlabs(size, kUnit, blocks)) return blocks;
      return grown;
    }
  }
}

bool HostPool::TakeFromSlabs(Bytes size, Bytes unit, std::vector<Block>& blocks) {
  blocks.clear();
  Bytes left = size;
  for (auto& [data, slab] : slabs_) {
    while (left > Bytes(0)) {
      const Bytes largest = slab.free.largest();
      const Bytes whole = largest - largest % unit;
      const Bytes take = largest >= left ? left : whole;
      if (take <= Bytes(0)) break;
      const Bytes offset = *slab.free.Take(take);
      blocks.push_back({data + offset.value(), take});
      left -= take;
    }
  }
  used_ += size - left;
  if (left == Bytes(0)) return true;
  FreeLocked(blocks);
  blocks.clear();
  return false;
}

Bytes HostPool::MapSize(Bytes slab) { return slab + kHugePage; }

// The slab begins at the first huge page after the beginning of its mapping: the gap before it,
// without access, is what keeps it from continuing another slab.
Status HostPool::Grow(Bytes size) {
  const size_t map_size = MapSize(size).size();
  void* const map = ::mmap(nullptr, map_size, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto address = reinterpret_cast<uintptr_t>(map);
  auto* const data = reinterpret_cast<std::byte*>((address / kHugePage.size() + 1) *
                                                  kHugePage.size());
  if (map == MAP_FAILED || ::mprotect(data, size.size(), PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    if (map != MAP_FAILED) ::munmap(map, map_size);
    return ResourceExhausted("HOST_MEMORY_EXHAUSTED", "the system gives no more host memory")
        .With("requested_bytes", size.value())
        .With("errno", error);
  }
  ::madvise(data, size.size(), MADV_HUGEPAGE);
  Touch(data, size);
  if (Status status = driver_.RegisterHost(data, size); !status.ok()) {
    ::munmap(map, map_size);
    return status;
  }
  MutexLock lock(mutex_);
  Slab& slab = slabs_[data];
  slab.data = data;
  slab.size = size;
  slab.map = map;
  slab.free.Put(Bytes(0), size);
  pinned_ += size;
  return Status::Ok();
}

void HostPool::Free(const std::vector<Block>& blocks) {
  MutexLock lock(mutex_);
  FreeLocked(blocks);
}

void HostPool::FreeLocked(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) {
    Slab& slab = std::prev(slabs_.upper_bound(block.data))->second;
    slab.free.Put(Bytes(block.data - slab.data), block.size);
    used_ -= block.size;
  }
}

HostPool::Stats HostPool::stats() const {
  MutexLock lock(mutex_);
  return {budget_, pinned_, used_};
}

}  // namespace torpor
