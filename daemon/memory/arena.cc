#include "daemon/memory/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace torpor {
namespace {

// Whether device memory backs the segment, or is about to.
bool HasMemory(const Segment& segment) {
  return segment.state() != SegmentState::kOffloaded && segment.state() != SegmentState::kDiscarded;
}

}  // namespace

Result<Arena::Place> Arena::Take(Bytes size) {
  if (!moving()) {
    if (const auto offset = stranded_.Take(size)) return Place{*offset, true};
  }
  if (const auto offset = free_.Take(size)) return Place{*offset, false};
  return ResourceExhausted("ARENA_EXHAUSTED",
                           "no range of addresses of tag " + tag_ + " is large enough")
      .With("requested_bytes", size.value())
      .With("largest_range_bytes", free_.largest().value())
      .With("arena_bytes", size_.value());
}

Segment& Arena::Add(std::unique_ptr<Segment> segment) {
  Segment& added = *segment;
  offsets_[added.id()] = added.offset();
  segments_[added.offset()] = std::move(segment);
  return added;
}

void Arena::AddExtents(const std::vector<ExtentPtr>& extents) {
  for (const ExtentPtr& extent : extents) extents_[extent->offset()] = extent;
}

void Arena::DropExtents(const std::vector<ExtentPtr>& extents) {
  for (const ExtentPtr& extent : extents) {
    extents_.erase(extent->offset());
    // What was stranded in it has no memory any more: plain free addresses.
    for (const auto& [offset, size] : stranded_.TakeWithin(extent->offset(), extent->size())) {
      free_.Put(offset, size);
    }
  }
}

std::vector<ExtentPtr> Arena::Drop(SegmentId id) {
  const auto it = segments_.find(offsets_.at(id));
  const std::unique_ptr<Segment> segment = std::move(it->second);
  segments_.erase(it);
  offsets_.erase(id);
  const std::vector<ExtentPtr> extents = ExtentsOf(*segment);
  (extents.empty() ? free_ : stranded_).Put(segment->offset(), segment->size());
  std::vector<ExtentPtr> dead;
  for (const ExtentPtr& extent : extents) {
    if (Lives(*extent)) continue;
    extents_.erase(extent->offset());
    stranded_.TakeWithin(extent->offset(), extent->size());
    dead.push_back(extent);
  }
  return dead;
}

void Arena::Reclaim(const std::vector<ExtentPtr>& extents) {
  for (const ExtentPtr& extent : extents) free_.Put(extent->offset(), extent->size());
}

void Arena::Restore(std::vector<std::unique_ptr<Segment>> segments,
                    const std::vector<ExtentPtr>& extents,
                    const std::vector<RangeSet::Range>& lost) {
  for (const ExtentPtr& extent : extents) {
    free_.TakeWithin(extent->offset(), extent->size());
    stranded_.Put(extent->offset(), extent->size());
  }
  AddExtents(extents);
  for (std::unique_ptr<Segment>& segment : segments) {
    free_.TakeWithin(segment->offset(), segment->size());
    stranded_.TakeWithin(segment->offset(), segment->size());
    Add(std::move(segment));
  }
  for (const RangeSet::Range& range : lost) {
    free_.TakeWithin(range.offset, range.size);
    stranded_.TakeWithin(range.offset, range.size);
  }
}

void Arena::Leave(const std::vector<RangeSet::Range>& ranges) {
  for (const RangeSet::Range& range : ranges) {
    for (const auto& [offset, size] : free_.TakeWithin(range.offset, range.size)) {
      leaving_.Put(offset, size);
    }
  }
}

void Arena::ReclaimLeaving() {
  for (const auto& [offset, size] : leaving_.ranges()) free_.Put(offset, size);
  leaving_ = RangeSet();
}

bool Arena::Lives(const Extent& extent) const {
  auto it = segments_.upper_bound(extent.offset());
  if (it != segments_.begin()) --it;
  for (; it != segments_.end() && it->first < extent.end(); ++it) {
    if (it->second->end() > extent.offset() && HasMemory(*it->second)) return true;
  }
  return false;
}

std::vector<ExtentPtr> Arena::ExtentsOf(const Segment& segment) const {
  std::vector<ExtentPtr> extents;
  auto it = extents_.upper_bound(segment.offset());
  if (it != extents_.begin()) --it;
  for (; it != extents_.end() && it->first < segment.end(); ++it) {
    if (it->second->end() > segment.offset()) extents.push_back(it->second);
  }
  return extents;
}

Segment* Arena::Find(SegmentId id) {
  const auto it = offsets_.find(id);
  return it == offsets_.end() ? nullptr : segments_.at(it->second).get();
}

bool Arena::moving() const {
  return std::any_of(segments_.begin(), segments_.end(), [](const auto& entry) {
    return entry.second->state() == SegmentState::kSleeping ||
           entry.second->state() == SegmentState::kWaking;
  });
}

std::vector<RangeSet::Range> PlanExtents(const std::vector<RangeSet::Range>& ranges) {
  std::vector<RangeSet::Range> merged;
  for (const RangeSet::Range& range : ranges) {
    if (!merged.empty() && merged.back().offset + merged.back().size == range.offset) {
      merged.back().size += range.size;
    } else {
      merged.push_back(range);
    }
  }
  std::vector<RangeSet::Range> plan;
  for (const RangeSet::Range& range : merged) {
    Bytes piece = kMaxExtent;
    while (range.size > piece * kMaxExtentsPerRange) piece = piece * 2;
    for (Bytes at{}; at < range.size; at += piece) {
      plan.push_back({range.offset + at, std::min(piece, range.size - at)});
    }
  }
  return plan;
}

}  // namespace torpor
