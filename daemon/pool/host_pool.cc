#include "daemon/pool/host_pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace torpor {
namespace {

std::unique_ptr<PoolMemory> Anonymous(Bytes budget) {
  auto memory = PoolMemory::Reserve(PoolMemoryKind::kAnonymous, budget - budget % HostPool::kUnit,
                                    HostPool::kSlab);
  if (memory.ok()) return *std::move(memory);
  std::fprintf(stderr, "host pool: %s\n", memory.status().ToString().c_str());
  std::abort();
}

}  // namespace

HostPool::HostPool(Driver& driver, std::unique_ptr<PoolMemory> memory, Pinner::Options options)
    : memory_(std::move(memory)),
      budget_(memory_->size()),
      pinner_(driver, *memory_, std::move(options)),
      free_(memory_->slabs()) {
  for (size_t i = 0; i < free_.size(); ++i) free_[i].Put(Bytes(0), memory_->size(i));
}

HostPool::HostPool(Driver& driver, Bytes budget)
    : HostPool(driver, Anonymous(budget), Pinner::Options()) {}

Result<std::vector<HostPool::Block>> HostPool::Allocate(Bytes size, Bytes unit) {
  size = RoundUp(size, kUnit);
  std::vector<Block> blocks;
  MutexLock lock(mutex_);
  if (budget_ - used_ < size) {
    return ResourceExhausted("HOST_POOL_EXHAUSTED",
                             "the host pool has no room: " + FormatBytes(size) + " asked, " +
                                 FormatBytes(budget_ - used_) + " of " + FormatBytes(budget_) +
                                 " left")
        .With("requested_bytes", size.value())
        .With("available_bytes", (budget_ - used_).value())
        .With("budget_bytes", budget_.value());
  }
  pinner_.Refresh(order_);
  // Scattered remains serve when nothing else is left; what the system refused to pin, after them.
  for (const size_t slabs : {order_.sound, order_.slabs.size()}) {
    if (TakeFromSlabs(slabs, size, unit, blocks) || TakeFromSlabs(slabs, size, kUnit, blocks)) {
      break;
    }
  }
  return blocks;
}

Result<std::vector<HostPool::Block>> HostPool::TakeAt(
    const std::vector<std::pair<Bytes, Bytes>>& places) {
  std::vector<Block> blocks;
  MutexLock lock(mutex_);
  for (const auto& [place, size] : places) {
    const auto refuse = [&, place = place, size = size](const char* why)
                            REQUIRES(mutex_) -> Status {
      FreeLocked(blocks);
      return InvalidArgument("BAD_BLOCK", std::string("a block of the host pool ") + why)
          .With("place", place.value())
          .With("size", size.value())
          .With("pool_bytes", budget_.value());
    };
    if (place < Bytes(0) || size <= Bytes(0) || size % kUnit != Bytes(0) || place > budget_ ||
        size > budget_ - place) {
      return refuse("lies outside it");
    }
    const auto slab = static_cast<size_t>(place / memory_->slab());
    const Bytes offset = place % memory_->slab();
    if (size > memory_->size(slab) - offset) return refuse("crosses a slab's end");
    const std::vector<RangeSet::Range> taken = free_[slab].TakeWithin(offset, size);
    if (taken.size() != 1 || taken[0].size != size) {
      for (const RangeSet::Range& range : taken) free_[slab].Put(range.offset, range.size);
      return refuse("is taken");
    }
    used_ += size;
    blocks.push_back({memory_->data(slab) + offset.value(), size});
    pinner_.Keep(slab);
  }
  return blocks;
}

bool HostPool::TakeFromSlabs(size_t slabs, Bytes size, Bytes unit, std::vector<Block>& blocks) {
  blocks.clear();
  Bytes left = size;
  for (size_t i = 0; i < slabs && left > Bytes(0); ++i) {
    const size_t slab = order_.slabs[i];
    RangeSet& free = free_[slab];
    while (left > Bytes(0) && free.total() > Bytes(0)) {
      const Bytes largest = free.largest();
      const Bytes whole = largest - largest % unit;
      const Bytes take = largest >= left ? left : whole;
      if (take <= Bytes(0)) break;
      blocks.push_back({memory_->data(slab) + free.Take(take)->value(), take});
      left -= take;
    }
  }
  used_ += size - left;
  if (left == Bytes(0)) return true;
  FreeLocked(blocks);
  blocks.clear();
  return false;
}

void HostPool::Free(const std::vector<Block>& blocks) {
  MutexLock lock(mutex_);
  FreeLocked(blocks);
}

void HostPool::FreeLocked(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) {
    const size_t slab = memory_->SlabAt(block.data);
    free_[slab].Put(Bytes(block.data - memory_->data(slab)), block.size);
    used_ -= block.size;
  }
}

void HostPool::Demand(const std::vector<Block>& blocks) {
  std::vector<size_t> slabs;
  for (const Block& block : blocks) {
    const size_t slab = memory_->SlabAt(block.data);
    if (slabs.empty() || slabs.back() != slab) slabs.push_back(slab);
  }
  pinner_.Demand(slabs);
}

Status HostPool::AwaitPinned(const std::byte* data, Bytes size,
                             const std::function<Status()>& interrupt) {
  if (size <= Bytes(0)) return Status::Ok();
  const size_t last = memory_->SlabAt(data + (size.value() - 1));
  for (size_t slab = memory_->SlabAt(data); slab <= last; ++slab) {
    TORPOR_RETURN_IF_ERROR(pinner_.Await(slab, interrupt));
  }
  return Status::Ok();
}

bool HostPool::IsPinned(const std::byte* data, Bytes size) const {
  if (size <= Bytes(0)) return true;
  const size_t last = memory_->SlabAt(data + (size.value() - 1));
  for (size_t slab = memory_->SlabAt(data); slab <= last; ++slab) {
    if (!pinner_.IsPinned(slab)) return false;
  }
  return true;
}

HostPool::Stats HostPool::stats() const {
  Pinner::Stats pinner = pinner_.stats();
  Stats stats;
  stats.pinned = pinner.pinned;
  stats.kind = memory_->description();
  stats.demanded = pinner.demanded;
  stats.pinning = pinner.pinning;
  stats.refused = pinner.refused;
  stats.last_error = std::move(pinner.last_error);
  MutexLock lock(mutex_);
  stats.budget = budget_;
  stats.used = used_;
  return stats;
}

}  // namespace torpor
