#include "client/segments.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <utility>

namespace torpor::client {
namespace {

Status UnknownAddress(DeviceAddress address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address.value()));
  return NotFound("UNKNOWN_ADDRESS", std::string("no segment at ") + text).With("address", text);
}

}  // namespace

Segments::Allocation::Allocation(Segments& segments, std::string tag)
    : segments_(segments), tag_(std::move(tag)) {
  MutexLock lock(segments_.mutex_);
  segments_.allocations_.push_back(this);
}

Segments::Allocation::~Allocation() {
  MutexLock lock(segments_.mutex_);
  segments_.allocations_.remove(this);
  segments_.settled_.NotifyAll();
}

bool Segments::Allocation::MayMap(uint64_t generation) {
  MutexLock lock(segments_.mutex_);
  if (segments_.told_generation_ > generation) return false;
  generation_ = generation;
  const auto settled = [&]() REQUIRES(segments_.mutex_) {
    return std::none_of(segments_.allocations_.begin(), segments_.allocations_.end(),
                        [&](const Allocation* other) {
                          return other->generation_ > 0 && other->generation_ < generation;
                        });
  };
  while (!settled()) segments_.settled_.Wait(segments_.mutex_);
  return true;
}

bool Segments::Allocation::Commit(DeviceAddress address, Segment segment) {
  MutexLock lock(segments_.mutex_);
  if (segments_.told_generation_ > generation_) return false;
  segments_.live_[address] = std::move(segment);
  return true;
}

Result<std::pair<DeviceAddress, Segment>> Segments::Find(DeviceAddress address) const {
  MutexLock lock(mutex_);
  const auto next = live_.upper_bound(address);
  if (next == live_.begin()) return UnknownAddress(address);
  const auto& [start, segment] = *std::prev(next);
  // Unsigned: an address may be further off than Bytes can tell.
  if (address.value() - start.value() >= segment.size.size()) return UnknownAddress(address);
  return std::make_pair(start, segment);
}

Result<Segment> Segments::Take(DeviceAddress address) {
  MutexLock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return UnknownAddress(address);
  Segment segment = std::move(found->second);
  live_.erase(found);
  freeing_.emplace(address, segment);
  return segment;
}

void Segments::PutBack(DeviceAddress address, const Segment& segment) {
  MutexLock lock(mutex_);
  EraseFreeing(address, segment.id);
  live_[address] = segment;
}

void Segments::Forget(DeviceAddress address, SegmentId id) {
  MutexLock lock(mutex_);
  EraseFreeing(address, id);
}

void Segments::EraseFreeing(DeviceAddress address, SegmentId id) {
  const auto [first, last] = freeing_.equal_range(address);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second.id != id) continue;
    freeing_.erase(entry);
    return;
  }
}

std::vector<SegmentId> Segments::ForHello(uint64_t generation) {
  MutexLock lock(mutex_);
  told_generation_ = generation;
  std::vector<SegmentId> ids;
  for (const auto& [address, segment] : live_) {
    if (!segment.lost) ids.push_back(segment.id);
  }
  return ids;
}

std::vector<Segment> Segments::MarkLost(const std::vector<SegmentId>& ids) {
  const std::set<SegmentId> lost(ids.begin(), ids.end());
  std::vector<Segment> marked;
  MutexLock lock(mutex_);
  for (auto& [address, segment] : live_) {
    if (segment.lost || lost.count(segment.id) == 0) continue;
    segment.lost = true;
    marked.push_back(segment);
  }
  return marked;
}

std::vector<Segment> Segments::Lost() const {
  MutexLock lock(mutex_);
  std::vector<Segment> lost;
  for (const auto& [address, segment] : live_) {
    if (segment.lost) lost.push_back(segment);
  }
  return lost;
}

std::optional<std::vector<wire::Extent>> Segments::WithoutSegments(
    const Segment& freed, std::vector<wire::Extent> extents) const {
  MutexLock lock(mutex_);
  for (const Allocation* allocation : allocations_) {
    // Into memory that the daemon has lost it puts nothing.
    if (!freed.lost && allocation->tag_ == freed.tag) return std::nullopt;
  }
  extents.erase(std::remove_if(extents.begin(), extents.end(),
                               [&](const wire::Extent& extent)
                                   REQUIRES(mutex_) { return AnyIn(freed.tag, extent); }),
                extents.end());
  return extents;
}

bool Segments::AnyIn(const std::string& tag, const wire::Extent& extent) const {
  const auto there = [&](const auto& entry) {
    const Segment& segment = entry.second;
    return segment.tag == tag && segment.Overlaps(extent.offset, extent.size);
  };
  return std::any_of(live_.begin(), live_.end(), there) ||
         std::any_of(freeing_.begin(), freeing_.end(), there);
}

}  // namespace torpor::client
