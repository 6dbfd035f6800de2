#include "daemon/memory/range_set.h"

#include <algorithm>
#include <iterator>

namespace torpor {

void RangeSet::Put(Bytes offset, Bytes size) {
  if (size <= Bytes(0)) return;
  total_ += size;
  auto next = ranges_.lower_bound(offset);
  if (next != ranges_.end() && next->first == offset + size) {
    size += next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  ranges_.emplace(offset, size);
}

std::optional<Bytes> RangeSet::Take(Bytes size) {
  auto best = ranges_.end();
  for (auto it = ranges_.begin(); it != ranges_.end(); ++it) {
    if (it->second < size || (best != ranges_.end() && best->second <= it->second)) continue;
    best = it;
    if (best->second == size) break;
  }
  if (best == ranges_.end()) return std::nullopt;
  const Bytes offset = best->first;
  TakeWithin(offset, size);
  return offset;
}

std::vector<RangeSet::Range> RangeSet::TakeWithin(Bytes offset, Bytes size) {
  const Bytes end = offset + size;
  std::vector<Range> taken;
  auto it = ranges_.upper_bound(offset);
  if (it != ranges_.begin()) --it;
  while (it != ranges_.end() && it->first < end) {
    const Bytes from = it->first;
    const Bytes to = from + it->second;
    const Bytes cut_from = std::max(from, offset);
    const Bytes cut_to = std::min(to, end);
    if (cut_from >= cut_to) {
      ++it;
      continue;
    }
    taken.push_back({cut_from, cut_to - cut_from});
    total_ -= cut_to - cut_from;
    it = ranges_.erase(it);
    if (from < cut_from) ranges_.emplace(from, cut_from - from);
    if (cut_to < to) it = ranges_.emplace(cut_to, to - cut_to).first;
  }
  return taken;
}

Bytes RangeSet::largest() const {
  Bytes size{};
  for (const auto& [offset, length] : ranges_) size = std::max(size, length);
  return size;
}

}  // namespace torpor
