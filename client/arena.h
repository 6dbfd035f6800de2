#ifndef TORPOR_CLIENT_ARENA_H_
#define TORPOR_CLIENT_ARENA_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/cuda/owners.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// The address range of one tag and the exact record of what this process maps in it. The range
// lives as long as the object, so addresses in it never change their meaning.
//
// Thread-safe: driver calls run outside the mutex; an extent that one call works on makes others
// that name it wait. `driver` must outlive the arena, and nothing may use the mapped memory when it
// is destroyed.
class Arena {
 public:
  static Result<std::shared_ptr<Arena>> Reserve(Driver& driver, Bytes size);
  // Unmaps what is left, as far as the driver lets it.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  DeviceAddress address() const { return range_->address(); }

  // Imports `fds` (one for each extent; closed on return in any case) and maps them with write
  // access. Extents that are mapped already are passed over. All or nothing: on failure those that
  // were not mapped before are unmapped again; only if the driver refuses even that do they stay,
  // and Mapped() says so.
  //   INVALID_ARGUMENT BAD_EXTENT: outside the arena, or another number of descriptors
  Status Map(std::vector<wire::Extent> extents, std::vector<UniqueFd> fds);

  // Unmaps extents and lets go of their physical memory; those that are not mapped are passed over.
  // The device must not use them any more. Stops at the first error: what comes after it in the
  // arena is as it was.
  Status Unmap(const std::vector<wire::Extent>& extents);

  // Without what lies in a range of this process's own.
  void AppendMapped(std::vector<ExtentId>& ids) const;
  // What is held here in the range.
  std::vector<wire::Extent> HeldIn(Bytes offset, Bytes size) const;
  // Those of `extents` that are held here, outside of this process's own ranges.
  std::vector<wire::Extent> HeldOf(const std::vector<wire::Extent>& extents) const;
  // Whether every byte of the range is mapped with write access.
  bool Covers(Bytes offset, Bytes size) const;

  // The memory in this range is this process's alone from now on, until Disown: the daemon does not
  // know it.
  void Own(Bytes offset, Bytes size);
  void Disown(Bytes offset);

 private:
  struct Record {
    Bytes offset{};
    Bytes size{};
    bool mapped = false;
    bool accessible = false;
    // Normally dropped as soon as the extent is mapped. A handle that the driver would not release
    // is tried again at every later call for the extent.
    MemoryHandle handle;
    bool busy = false;
  };
  struct Item {
    ExtentId id;
    Record record;
    UniqueFd fd;
  };
  using Run = std::pair<size_t, size_t>;  // [first, last) of items that are neighbours

  Arena(Driver& driver, std::shared_ptr<AddressReservation> range)
      : driver_(driver), range_(std::move(range)) {}

  // Marks extents busy, after waiting for whoever else works on one of them; Settle writes back.
  std::vector<Item> TakeUnmapped(std::vector<wire::Extent> extents, std::vector<UniqueFd> fds);
  std::vector<Item> TakeHeld(const std::vector<wire::Extent>& extents);
  bool Owned(const Record& record) const REQUIRES(mutex_);
  void AwaitIdle(const std::vector<wire::Extent>& extents) REQUIRES(mutex_);
  void Settle(const std::vector<Item>& items);

  static std::vector<Run> Runs(const std::vector<Item>& items);
  Status MapItems(std::vector<Item>& items);
  Status UnmapItems(std::vector<Item>& items);
  Status DropHandle(Record& record);

  Driver& driver_;
  const std::shared_ptr<AddressReservation> range_;
  mutable Mutex mutex_;
  CondVar idle_;
  std::map<ExtentId, Record> records_ GUARDED_BY(mutex_);
  std::map<Bytes, Bytes> own_ GUARDED_BY(mutex_);  // size, by offset
};

// The arenas of a worker, by tag. Thread-safe.
class ArenaSet {
 public:
  // Each arena is `arena_size` of addresses.
  ArenaSet(Driver& driver, Bytes arena_size) : driver_(driver), arena_size_(arena_size) {}

  // Reserves the range on the tag's first use.
  Result<std::shared_ptr<Arena>> Get(const std::string& tag);
  // Nothing: the tag was never used here.
  std::shared_ptr<Arena> Find(const std::string& tag) const;
  std::map<std::string, std::shared_ptr<Arena>> All() const;
  // In all of them.
  std::vector<ExtentId> Mapped() const;
  void Clear();

 private:
  Driver& driver_;
  const Bytes arena_size_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Arena>> arenas_ GUARDED_BY(mutex_);
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_ARENA_H_
