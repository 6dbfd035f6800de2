#include "daemon/keeper/in_process_keeper.h"

#include <fcntl.h>

#include <cerrno>

namespace torpor {

Status InProcessKeeper::HoldExtent(ExtentId id, WorkerId, Bytes, int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoStatus(errno, "keep an extent's descriptor");
  MutexLock lock(mutex_);
  extents_[id] = std::move(copy);
  return Status::Ok();
}

Status InProcessKeeper::DropExtent(ExtentId id) {
  UniqueFd dropped;
  MutexLock lock(mutex_);
  const auto it = extents_.find(id);
  if (it == extents_.end()) return Status::Ok();
  dropped = std::move(it->second);
  extents_.erase(it);
  return Status::Ok();
}

Status InProcessKeeper::Record(const JournalRecord& record) {
  MutexLock lock(mutex_);
  struct Apply {
    InProcessKeeper& keeper;
    void operator()(const SessionOpened& r) NO_THREAD_SAFETY_ANALYSIS {
      keeper.sessions_[r.worker] = r;
    }
    void operator()(const SessionClosed& r) NO_THREAD_SAFETY_ANALYSIS {
      keeper.sessions_.erase(r.worker);
      for (auto it = keeper.segments_.begin(); it != keeper.segments_.end();) {
        it = it->second.worker == r.worker ? keeper.segments_.erase(it) : std::next(it);
      }
    }
    void operator()(const SegmentRecorded& r) NO_THREAD_SAFETY_ANALYSIS {
      keeper.segments_[r.segment] = r;
    }
    void operator()(const SegmentFreed& r) NO_THREAD_SAFETY_ANALYSIS {
      keeper.segments_.erase(r.segment);
    }
    void operator()(const ReservationMade& r) NO_THREAD_SAFETY_ANALYSIS {
      keeper.reservations_[r.id] = r;
    }
    void operator()(const ReservationRenewed& r) NO_THREAD_SAFETY_ANALYSIS {
      const auto it = keeper.reservations_.find(r.id);
      if (it != keeper.reservations_.end()) it->second.expires = r.expires;
    }
    void operator()(const ReservationReleased& r) NO_THREAD_SAFETY_ANALYSIS {
      keeper.reservations_.erase(r.id);
    }
  };
  std::visit(Apply{*this}, record);
  return Status::Ok();
}

size_t InProcessKeeper::extents() const {
  MutexLock lock(mutex_);
  return extents_.size();
}

std::vector<SegmentRecorded> InProcessKeeper::segments() const {
  MutexLock lock(mutex_);
  std::vector<SegmentRecorded> all;
  for (const auto& [id, segment] : segments_) all.push_back(segment);
  return all;
}

}  // namespace torpor
