#ifndef TORPOR_DAEMON_MEMORY_ARENA_H_
#define TORPOR_DAEMON_MEMORY_ARENA_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/extent.h"
#include "daemon/memory/range_set.h"
#include "daemon/memory/segment.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// A worker's address range for one tag: which offsets its segments have, and which extents lie
// where. Books only, no driver call. Not thread-safe: the Inventory guards it.
//
// A byte of the arena is in a segment, or free, or stranded (freed, but in an extent that still
// lives), or leaving (freed, and to be unmapped by the worker). An extent may hold several segments
// and a segment may span several extents; an extent lives as long as a segment with memory lies in
// it.
class Arena {
 public:
  Arena(std::string tag, Bytes size) : tag_(std::move(tag)), size_(size) {
    free_.Put(Bytes(0), size);
  }

  const std::string& tag() const { return tag_; }
  Bytes size() const { return size_; }

  struct Place {
    Bytes offset{};
    bool mapped = false;  // in place of a freed part: needs no new memory
  };
  // RESOURCE_EXHAUSTED ARENA_EXHAUSTED. The place is taken until Drop of its segment.
  Result<Place> Take(Bytes size);

  // `segment` lies in a taken place.
  Segment& Add(std::unique_ptr<Segment> segment);
  void AddExtents(const std::vector<ExtentPtr>& extents);
  // Takes extents out of the books whose segments sleep and that the worker has unmapped; whoever
  // holds the pointers ends them.
  void DropExtents(const std::vector<ExtentPtr>& extents);
  // Removes a segment and gives the extents that nothing lives in any more, out of the books. Their
  // addresses stay taken until Reclaim: the worker still maps them.
  std::vector<ExtentPtr> Drop(SegmentId id);
  void Reclaim(const std::vector<ExtentPtr>& extents);

  // Of an arena without anything so far, what a daemon before this one had in it. `lost` are
  // addresses that the worker keeps for itself.
  void Restore(std::vector<std::unique_ptr<Segment>> segments,
               const std::vector<ExtentPtr>& extents, const std::vector<RangeSet::Range>& lost);
  // Addresses that the worker may still map, though no segment needs that: not to be used before
  // ReclaimLeaving.
  void Leave(const std::vector<RangeSet::Range>& ranges);
  void ReclaimLeaving();

  const std::map<Bytes, std::unique_ptr<Segment>>& segments() const { return segments_; }
  const std::map<Bytes, ExtentPtr>& extents() const { return extents_; }
  // The extents that overlap the segment, in order.
  std::vector<ExtentPtr> ExtentsOf(const Segment& segment) const;
  Segment* Find(SegmentId id);
  Bytes stranded() const { return stranded_.total(); }
  // A segment is under an operation: freed parts are not reused and stay until it ends.
  bool moving() const;

 private:
  bool Lives(const Extent& extent) const;

  const std::string tag_;
  const Bytes size_;
  RangeSet free_;
  RangeSet stranded_;
  RangeSet leaving_;
  std::map<Bytes, std::unique_ptr<Segment>> segments_;  // by offset
  std::map<Bytes, ExtentPtr> extents_;                  // by offset
  std::map<SegmentId, Bytes> offsets_;
};

// Cuts ranges that want memory into extents: neighbours become one, of up to kMaxExtent each; of
// more where a range would need more than kMaxExtentsPerRange. `ranges` are disjoint and in
// ascending order.
constexpr int64_t kMaxExtentsPerRange = 128;
std::vector<RangeSet::Range> PlanExtents(const std::vector<RangeSet::Range>& ranges);

}  // namespace torpor

#endif  // TORPOR_DAEMON_MEMORY_ARENA_H_
