#include "daemon/pool/host_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace torpor {
namespace {

constexpr int64_t kPage = 4096;

// Touches every page, from several threads: one alone needs seconds for what a sleep does in
// milliseconds.
void Touch(std::byte* data, Bytes size) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = std::min<int64_t>(std::min(16u, cores), size / MiB(16) + 1);
  const Bytes part = RoundUp(Bytes(size.value() / threads), MiB(2));
  std::vector<std::thread> running;
  for (Bytes from{}; from < size; from += part) {
    const Bytes to = std::min(size, from + part);
    running.emplace_back([=] {
      for (int64_t i = from.value(); i < to.value(); i += kPage) data[i] = std::byte{0};
    });
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
    ::munmap(data, slab.size.size());
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
    TORPOR_RETURN_IF_ERROR(Grow(missing));
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

Status HostPool::Grow(Bytes size) {
  void* const map = ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return ResourceExhausted("HOST_MEMORY_EXHAUSTED", "the system gives no more host memory")
        .With("requested_bytes", size.value())
        .With("errno", errno);
  }
  ::madvise(map, size.size(), MADV_HUGEPAGE);
  auto* const data = static_cast<std::byte*>(map);
  Touch(data, size);
  if (Status status = driver_.RegisterHost(data, size); !status.ok()) {
    ::munmap(map, size.size());
    return status;
  }
  MutexLock lock(mutex_);
  Slab& slab = slabs_[data];
  slab.data = data;
  slab.size = size;
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
