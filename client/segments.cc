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
  freeing_[segment.id] = {segment, false};
  return segment;
}

Segment Segments::StartFree(const Segment& taken) {
  MutexLock lock(mutex_);
  Freeing& freeing = freeing_[taken.id];
  freeing.asked = true;
  return freeing.segment;
}

void Segments::PutBack(DeviceAddress address, const Segment& segment) {
  MutexLock lock(mutex_);
  freeing_.erase(segment.id);
  live_[address] = segment;
}

void Segments::Forget(SegmentId id) {
  MutexLock lock(mutex_);
  freeing_.erase(id);
}

std::vector<SegmentId> Segments::ForHello(uint64_t generation) {
  MutexLock lock(mutex_);
  told_generation_ = generation;
  std::vector<SegmentId> ids;
  for (const auto& [address, segment] : live_) {
    if (!segment.lost) ids.push_back(segment.id);
  }
  for (const auto& [id, freeing] : freeing_) {
    if (!freeing.segment.lost && !freeing.asked) ids.push_back(id);
  }
  return ids;
}

std::vector<Segment> Segments::MarkLost(const std::vector<SegmentId>& ids,
                                        const std::set<std::string>& asleep) {
  const std::set<SegmentId> lost(ids.begin(), ids.end());
  std::vector<Segment> marked;
  const auto mark = [&](Segment& segment) {
    if (segment.lost || lost.count(segment.id) == 0) return;
    segment.lost = true;
    segment.gone = asleep.count(segment.tag) > 0;
    marked.push_back(segment);
  };
  MutexLock lock(mutex_);
  for (auto& [address, segment] : live_) mark(segment);
  for (auto& [id, freeing] : freeing_) {
    if (!freeing.asked) mark(freeing.segment);
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
  const auto there = [&](const Segment& segment) {
    return segment.tag == tag && segment.Overlaps(extent.offset, extent.size);
  };
  return std::any_of(live_.begin(), live_.end(),
                     [&](const auto& entry) { return there(entry.second); }) ||
         std::any_of(freeing_.begin(), freeing_.end(),
                     [&](const auto& entry) { return there(entry.second.segment); });
}

}  // namespace torpor::client
