#include "client/arena.h"

#include <algorithm>

#include "lib/net/frame.h"

namespace torpor::client {

Result<std::shared_ptr<Arena>> Arena::Reserve(Driver& driver, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<AddressReservation> range,
                          AddressReservation::Create(driver, size));
  return std::shared_ptr<Arena>(new Arena(driver, std::move(range)));
}

Arena::~Arena() {
  std::vector<wire::Extent> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, record] : records_) all.push_back({id, record.offset, record.size});
  }
  (void)Unmap(all);
}

Status Arena::Map(std::vector<wire::Extent> extents, std::vector<UniqueFd> fds) {
  if (extents.size() != fds.size()) {
    return InvalidArgument("BAD_EXTENT", "another number of descriptors than of extents")
        .With("extents", extents.size())
        .With("fds", fds.size());
  }
  const bool missing =
      std::any_of(fds.begin(), fds.end(), [](const UniqueFd& fd) { return !fd.valid(); });
  if (missing) return net::DescriptorsMissing();
  for (const wire::Extent& extent : extents) {
    if (extent.offset < Bytes(0) || extent.size <= Bytes(0) || extent.size > range_->size() ||
        extent.offset > range_->size() - extent.size) {
      return InvalidArgument("BAD_EXTENT", "an extent lies outside its arena")
          .With("offset", extent.offset.value())
          .With("size", extent.size.value())
          .With("arena_bytes", range_->size().value());
    }
  }
  std::vector<Item> items = TakeUnmapped(std::move(extents), std::move(fds));
  Status status = MapItems(items);
  if (!status.ok()) {
    const Status undo = UnmapItems(items);
    if (!undo.ok()) status.Add("rollback_error", undo.ToString());
  }
  Settle(items);
  return status;
}

Status Arena::Unmap(const std::vector<wire::Extent>& extents) {
  std::vector<Item> items = TakeHeld(extents);
  Status status = UnmapItems(items);
  Settle(items);
  return status;
}

void Arena::AppendMapped(std::vector<ExtentId>& ids) const {
  MutexLock lock(mutex_);
  for (const auto& [id, record] : records_) {
    if (record.mapped && !Owned(record)) ids.push_back(id);
  }
}

std::vector<wire::Extent> Arena::HeldIn(Bytes offset, Bytes size) const {
  std::vector<wire::Extent> held;
  MutexLock lock(mutex_);
  for (const auto& [id, record] : records_) {
    if (record.offset < offset + size && offset < record.offset + record.size) {
      held.push_back({id, record.offset, record.size});
    }
  }
  return held;
}

std::vector<wire::Extent> Arena::HeldOf(const std::vector<wire::Extent>& extents) const {
  std::vector<wire::Extent> held;
  MutexLock lock(mutex_);
  for (const wire::Extent& extent : extents) {
    const auto found = records_.find(extent.id);
    if (found == records_.end() || Owned(found->second)) continue;
    held.push_back({extent.id, found->second.offset, found->second.size});
  }
  return held;
}

bool Arena::Covers(Bytes offset, Bytes size) const {
  MutexLock lock(mutex_);
  Bytes covered{};  // extents do not overlap each other
  for (const auto& [id, record] : records_) {
    if (!record.mapped || !record.accessible) continue;
    const Bytes first = std::max(record.offset, offset);
    const Bytes end = std::min(record.offset + record.size, offset + size);
    if (first < end) covered += end - first;
  }
  return covered == size;
}

void Arena::Own(Bytes offset, Bytes size) {
  MutexLock lock(mutex_);
  own_[offset] = size;
}

void Arena::Disown(Bytes offset) {
  MutexLock lock(mutex_);
  own_.erase(offset);
}

bool Arena::Owned(const Record& record) const {
  return std::any_of(own_.begin(), own_.end(), [&](const auto& range) {
    return record.offset < range.first + range.second && range.first < record.offset + record.size;
  });
}

void Arena::AwaitIdle(const std::vector<wire::Extent>& extents) {
  const auto busy = [&]() REQUIRES(mutex_) {
    for (const wire::Extent& extent : extents) {
      const auto found = records_.find(extent.id);
      if (found != records_.end() && found->second.busy) return true;
    }
    return false;
  };
  while (busy()) idle_.Wait(mutex_);
}

std::vector<Arena::Item> Arena::TakeUnmapped(std::vector<wire::Extent> extents,
                                             std::vector<UniqueFd> fds) {
  std::vector<Item> items;
  MutexLock lock(mutex_);
  AwaitIdle(extents);
  for (size_t i = 0; i < extents.size(); ++i) {
    const wire::Extent& extent = extents[i];
    Record& record = records_[extent.id];
    if ((record.mapped && record.accessible) || record.busy) continue;
    record.offset = extent.offset;
    record.size = extent.size;
    items.push_back({extent.id, record, std::move(fds[i])});
    record.busy = true;
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.record.offset < b.record.offset; });
  return items;
}

std::vector<Arena::Item> Arena::TakeHeld(const std::vector<wire::Extent>& extents) {
  std::vector<Item> items;
  MutexLock lock(mutex_);
  AwaitIdle(extents);
  for (const wire::Extent& extent : extents) {
    const auto found = records_.find(extent.id);
    if (found == records_.end() || found->second.busy) continue;
    items.push_back({extent.id, found->second, UniqueFd()});
    found->second.busy = true;
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.record.offset < b.record.offset; });
  return items;
}

void Arena::Settle(const std::vector<Item>& items) {
  MutexLock lock(mutex_);
  for (const Item& item : items) {
    if (item.record.mapped || item.record.handle != MemoryHandle()) {
      records_[item.id] = item.record;
    } else {
      records_.erase(item.id);
    }
  }
  idle_.NotifyAll();
}

std::vector<Arena::Run> Arena::Runs(const std::vector<Item>& items) {
  std::vector<Run> runs;
  for (size_t i = 0; i < items.size(); ++i) {
    const Record& record = items[i].record;
    if (!record.mapped) continue;
    const bool joins = !runs.empty() && runs.back().second == i &&
                       items[i - 1].record.offset + items[i - 1].record.size == record.offset;
    if (joins) {
      runs.back().second = i + 1;
    } else {
      runs.emplace_back(i, i + 1);
    }
  }
  return runs;
}

Status Arena::MapItems(std::vector<Item>& items) {
  for (Item& item : items) {
    Record& record = item.record;
    if (!record.mapped) {
      if (record.handle == MemoryHandle()) {
        TORPOR_ASSIGN_OR_RETURN(record.handle, driver_.Import(item.fd.get(), record.size));
      }
      item.fd.Reset();
      TORPOR_RETURN_IF_ERROR(
          driver_.Map(range_->address() + record.offset, record.size, record.handle));
      record.mapped = true;
    }
    (void)DropHandle(record);
  }
  for (const auto& [first, last] : Runs(items)) {
    const Record& from = items[first].record;
    const Record& to = items[last - 1].record;
    TORPOR_RETURN_IF_ERROR(driver_.SetAccess(
        range_->address() + from.offset, to.offset + to.size - from.offset, Access::kReadWrite));
    for (size_t i = first; i < last; ++i) items[i].record.accessible = true;
  }
  return Status::Ok();
}

Status Arena::UnmapItems(std::vector<Item>& items) {
  for (const auto& [first, last] : Runs(items)) {
    const Record& from = items[first].record;
    const Record& to = items[last - 1].record;
    TORPOR_RETURN_IF_ERROR(
        driver_.Unmap(range_->address() + from.offset, to.offset + to.size - from.offset));
    for (size_t i = first; i < last; ++i) {
      items[i].record.mapped = false;
      items[i].record.accessible = false;
    }
  }
  for (Item& item : items) TORPOR_RETURN_IF_ERROR(DropHandle(item.record));
  return Status::Ok();
}

Status Arena::DropHandle(Record& record) {
  if (record.handle == MemoryHandle()) return Status::Ok();
  TORPOR_RETURN_IF_ERROR(driver_.Release(record.handle));
  record.handle = MemoryHandle();
  return Status::Ok();
}

Result<std::shared_ptr<Arena>> ArenaSet::Get(const std::string& tag) {
  if (std::shared_ptr<Arena> known = Find(tag)) return known;
  // Outside the lock; of two first users one finds the other's arena and drops its own.
  TORPOR_ASSIGN_OR_RETURN(std::shared_ptr<Arena> fresh, Arena::Reserve(driver_, arena_size_));
  MutexLock lock(mutex_);
  return arenas_.emplace(tag, std::move(fresh)).first->second;
}

std::shared_ptr<Arena> ArenaSet::Find(const std::string& tag) const {
  MutexLock lock(mutex_);
  const auto found = arenas_.find(tag);
  return found == arenas_.end() ? nullptr : found->second;
}

std::map<std::string, std::shared_ptr<Arena>> ArenaSet::All() const {
  MutexLock lock(mutex_);
  return arenas_;
}

std::vector<ExtentId> ArenaSet::Mapped() const {
  std::vector<ExtentId> ids;
  for (const auto& [tag, arena] : All()) arena->AppendMapped(ids);
  return ids;
}

void ArenaSet::Clear() {
  std::map<std::string, std::shared_ptr<Arena>> dropped;
  MutexLock lock(mutex_);
  dropped.swap(arenas_);
}

}  // namespace torpor::client
