#ifndef TORPOR_CLIENT_SEGMENTS_H_
#define TORPOR_CLIENT_SEGMENTS_H_

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/wire/messages.h"

namespace torpor::client {

struct Segment {
  SegmentId id;
  std::string tag;
  Bytes offset{};  // in the tag's arena
  Bytes size{};
  bool lost = false;  // the daemon does not have it: the memory is this process's alone
  bool gone = false;  // lost while it was asleep: whatever memory is mapped there by now, its
                      // contents are not in it

  bool Overlaps(Bytes other_offset, Bytes other_size) const {
    return other_offset < offset + size && offset < other_offset + other_size;
  }
};

// What a worker has allocated, and what of it the daemon was told in which hello. Generations are
// those of links. Thread-safe.
class Segments {
 public:
  // An allocation under way, from before it is asked for until it is a segment or nothing.
  class Allocation {
   public:
    Allocation(Segments& segments, std::string tag);
    ~Allocation();
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;

    // The daemon of `generation` has answered, and mapping begins. Waits until nothing is left of
    // what earlier daemons gave and never heard of again: it may lie at the same addresses. False:
    // that daemon has ended, and the next one knows nothing of this.
    bool MayMap(uint64_t generation) EXCLUDES(segments_.mutex_);
    // The daemon has taken note. False, and nothing changed: but the next one will not know it.
    bool Commit(DeviceAddress address, Segment segment) EXCLUDES(segments_.mutex_);

   private:
    friend class Segments;
    Segments& segments_;
    const std::string tag_;
    uint64_t generation_ = 0;  // 0: nothing is mapped
  };

  // NOT_FOUND UNKNOWN_ADDRESS: not in (Find), not the start of (Take) a segment.
  Result<std::pair<DeviceAddress, Segment>> Find(DeviceAddress address) const EXCLUDES(mutex_);
  // The segment is being freed from now on, until PutBack or Forget.
  Result<Segment> Take(DeviceAddress address) EXCLUDES(mutex_);
  // The daemon is about to be asked: no hello names the segment any more. Returns it as it is now.
  Segment StartFree(const Segment& taken) EXCLUDES(mutex_);
  void PutBack(DeviceAddress address, const Segment& segment) EXCLUDES(mutex_);
  void Forget(SegmentId id) EXCLUDES(mutex_);

  // For a hello to the daemon of `generation`: what no daemon was asked to free.
  std::vector<SegmentId> ForHello(uint64_t generation) EXCLUDES(mutex_);
  // The daemon does not have these. Returns those that it was right to expect.
  // `asleep`: the tags that were, until the daemon ended.
  std::vector<Segment> MarkLost(const std::vector<SegmentId>& ids,
                                const std::set<std::string>& asleep) EXCLUDES(mutex_);
  std::vector<Segment> Lost() const EXCLUDES(mutex_);

  // Those of `extents`, where `freed` lay, in which no segment lies, also none that is being freed
  // and that the daemon may still have: the daemon will put none there either. Nothing: an
  // allocation of the tag is under way, and might come to lie there.
  std::optional<std::vector<wire::Extent>> WithoutSegments(const Segment& freed,
                                                           std::vector<wire::Extent> extents) const
      EXCLUDES(mutex_);

 private:
  struct Freeing {
    Segment segment;
    bool asked = false;
  };

  bool AnyIn(const std::string& tag, const wire::Extent& extent) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar settled_;
  std::map<DeviceAddress, Segment> live_ GUARDED_BY(mutex_);
  std::map<SegmentId, Freeing> freeing_ GUARDED_BY(mutex_);
  std::list<const Allocation*> allocations_ GUARDED_BY(mutex_);
  uint64_t told_generation_ GUARDED_BY(mutex_) = 1;  // of the last hello
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_SEGMENTS_H_
