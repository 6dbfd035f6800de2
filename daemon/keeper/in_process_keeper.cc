#include "daemon/keeper/in_process_keeper.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

namespace torpor {
namespace {

Result<UniqueFd> Duplicate(int fd, const char* what) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoStatus(errno, what);
  return copy;
}

}  // namespace

Status InProcessKeeper::HoldExtent(const ExtentHeld& extent, int fd) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd copy, Duplicate(fd, "keep an extent's descriptor"));
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(ledger_.CheckExtent(extent));
  ledger_.Apply(extent);
  std::swap(extents_[extent.extent], copy);
  return Status::Ok();
}

Status InProcessKeeper::DropExtent(ExtentId id) {
  UniqueFd dropped;  // closed without the lock
  MutexLock lock(mutex_);
  ledger_.Apply(ExtentDropped{id});
  const auto it = extents_.find(id);
  if (it == extents_.end()) return Status::Ok();
  dropped = std::move(it->second);
  extents_.erase(it);
  return Status::Ok();
}

Status InProcessKeeper::Record(const std::vector<JournalRecord>& records) {
  std::vector<UniqueFd> dropped;
  MutexLock lock(mutex_);
  ledger_.Apply(records);
  for (auto it = extents_.begin(); it != extents_.end();) {
    if (ledger_.extents().count(it->first) > 0 && ledger_.lost().count(it->first) == 0) {
      ++it;
      continue;
    }
    dropped.push_back(std::move(it->second));
    it = extents_.erase(it);
  }
  return Status::Ok();
}

Status InProcessKeeper::HoldPool(const PoolHeld& pool, int fd) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd copy, Duplicate(fd, "keep the pool's descriptor"));
  MutexLock lock(mutex_);
  ledger_.Apply(pool);
  std::swap(pool_, copy);
  return Status::Ok();
}

Ledger InProcessKeeper::ledger() const {
  MutexLock lock(mutex_);
  return ledger_;
}

size_t InProcessKeeper::extents() const {
  MutexLock lock(mutex_);
  return extents_.size();
}

std::vector<SegmentRecorded> InProcessKeeper::segments() const {
  MutexLock lock(mutex_);
  std::vector<SegmentRecorded> all;
  for (const auto& [id, segment] : ledger_.segments()) all.push_back(segment);
  return all;
}

}  // namespace torpor
