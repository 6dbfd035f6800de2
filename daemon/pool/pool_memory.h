#ifndef TORPOR_DAEMON_POOL_POOL_MEMORY_H_
#define TORPOR_DAEMON_POOL_POOL_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"

namespace torpor {

// What the host pool is made of, unless it is a file with a name. Memfd and tmpfs are files without
// one, whose bytes live as long as a descriptor of them is open anywhere.
enum class PoolMemoryKind {
  kAuto,       // the first of the others, in their order, that comes with huge pages
  kMemfd,      // huge pages where /sys/kernel/mm/transparent_hugepage/shmem_enabled lets it
  kTmpfs,      // a tmpfs of its own, mounted nowhere, with huge pages; needs CAP_SYS_ADMIN
  kAnonymous,  // private memory of this process, with huge pages where the system gives them
};

// Addresses for the whole of a pool, and the memory behind them: slabs of one size, the last one of
// what is left, each beginning at a huge page, with a gap without access on either side. Takes no
// memory until it is populated. Immutable but for the memory itself: thread-safe.
class PoolMemory {
 public:
  // `size` and `slab` are multiples of the page size; `size` may be 0.
  //   FAILED_PRECONDITION POOL_MEMORY_UNAVAILABLE: the system does not give that kind (never kAuto)
  //   RESOURCE_EXHAUSTED HOST_MEMORY_EXHAUSTED: not even addresses
  static Result<std::unique_ptr<PoolMemory>> Reserve(PoolMemoryKind kind, Bytes size, Bytes slab);
  // A new file in `folder`, which is on a tmpfs, with mode 0600 and a name that begins with
  // `prefix`. Whatever it had under that prefix before, and nobody uses, is removed. Its bytes live
  // until it is removed.
  //   INVALID_ARGUMENT POOL_DIR_UNUSABLE: no folder, no right to write there, or no tmpfs
  //   RESOURCE_EXHAUSTED POOL_DIR_TOO_SMALL: of that file system
  static Result<std::unique_ptr<PoolMemory>> Create(const std::string& folder,
                                                    const std::string& prefix, Bytes size,
                                                    Bytes slab);
  // A pool that a daemon before this one had, as its file, with all its contents. `path` (empty: it
  // has no name), `description`, `size` and `slab` as that one's. A file that does not have its
  // name any more is told so in the description, and has no path.
  //   FAILED_PRECONDITION POOL_CHANGED: the file has another size
  static Result<std::unique_ptr<PoolMemory>> Adopt(UniqueFd file, std::string path,
                                                   std::string description, Bytes size, Bytes slab);
  // The same, of a file that nobody has open. As Adopt, and
  //   NOT_FOUND POOL_MISSING; FAILED_PRECONDITION POOL_IN_USE; as ErrnoStatus, of what may pass
  static Result<std::unique_ptr<PoolMemory>> Open(const std::string& path, std::string description,
                                                  Bytes size, Bytes slab);
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  Bytes size() const { return size_; }
  Bytes slab() const { return slab_; }
  size_t slabs() const { return slabs_; }
  std::byte* data(size_t slab) const {
    return base_ + static_cast<int64_t>(slab) * stride_.value();
  }
  Bytes size(size_t slab) const;
  // The slab that `address` lies in.
  size_t SlabAt(const std::byte* address) const {
    return static_cast<size_t>((address - base_) / stride_.value());
  }

  // Where an address of a slab lies in the file, and the other way round.
  Bytes Place(const std::byte* address) const {
    const size_t slab = SlabAt(address);
    return slab_ * static_cast<int64_t>(slab) + Bytes(address - data(slab));
  }
  std::byte* At(Bytes place) const {
    return data(static_cast<size_t>(place / slab_)) + (place % slab_).value();
  }

  // For people: "tmpfs, huge pages"; "memfd, small pages"; "anonymous".
  const std::string& description() const { return description_; }
  // Of a file that has a name, else empty.
  const std::string& path() const { return path_; }
  // The file that all slabs lie in, slab i at i * slab; -1 for anonymous memory, which ends with
  // the process.
  int fd() const { return file_.get(); }

  // Takes memory for a part of a slab from the system; what is there already keeps its contents.
  // Threads share one call's work best by parts of whole huge pages.
  // RESOURCE_EXHAUSTED HOST_MEMORY_EXHAUSTED, also if the file system has no room.
  Status Populate(size_t slab, Bytes offset, Bytes size) const;
  // Gives the memory of a slab back; its contents are gone.
  void Drop(size_t slab) const;

 private:
  PoolMemory(UniqueFd file, std::string path, std::string description, Bytes size, Bytes slab);
  Status Map();
  // Makes sure that a touch finds memory. Elsewhere it would end the process (SIGBUS).
  Status TakeRoom(size_t slab, const std::byte* at, size_t length) const;

  const UniqueFd file_;
  const std::string path_;
  const std::string description_;
  const Bytes size_;
  const Bytes slab_;
  const Bytes stride_;  // from slab to slab
  const size_t slabs_;
  void* map_ = nullptr;
  std::byte* base_ = nullptr;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_POOL_MEMORY_H_
