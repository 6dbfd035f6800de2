#ifndef TORPOR_LIB_CUDA_HOST_DRIVER_H_
#define TORPOR_LIB_CUDA_HOST_DRIVER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/cuda/host_stream.h"

namespace torpor {

// A device whose memory is unlinked files (memfd), for machines without a GPU and for tests. It is
// as real as files can make it: addresses are pointers of this process, a descriptor that was
// exported keeps bytes alive in whatever process it ends up, memory touched before SetAccess (or
// written through a read-only mapping) is a SIGSEGV, and whatever breaks a rule of Driver is
// refused as CUDA refuses it. Every byte of Create is a byte of the machine's memory.
//
// Capacity. A file counts from its Create (or from its Import into a process that has called
// CreateDevice, as after a restart) until its last descriptor and mapping, in whatever process,
// are gone. The device learns of that without keeping the file in use: the file carries a shared
// flock, which belongs to the open file that all duplicates and mappings have in common; the device
// keeps a second open file on it, and once it gets the exclusive lock there, no one holds the
// first. A holder must therefore pass duplicates on, never open the file again through /proc. A
// forked child does not inherit mappings, so it keeps nothing in use that has no handle.
//
// Copies and digests check their range when they are queued and again, piece by piece, when they
// run: work on memory that was unmapped meanwhile ends in an error of its stream (INTERNAL
// DRIVER_ILLEGAL_ADDRESS), not in a crash.
class HostDriver final : public Driver {
 public:
  struct DeviceOptions {
    std::string uuid;            // any name
    Bytes total{};               // at least one granularity
    Bytes granularity = MiB(2);  // a power of two, a page or more
  };
  // The device itself: for the one process that owns its memory. INVALID_ARGUMENT
  // BAD_DEVICE_OPTIONS.
  static Result<std::unique_ptr<HostDriver>> CreateDevice(const DeviceOptions& options);
  // A process that uses memory of another one's device, which `device` describes. It can only
  // import: Create and GetMemoryInfo are FAILED_PRECONDITION HOST_DEVICE_NOT_OWNED.
  static Result<std::unique_ptr<HostDriver>> OpenDevice(const DeviceInfo& device);

  // Waits for all streams; unmaps everything.
  ~HostDriver() override;

  const DeviceInfo& device() const override { return device_; }
  Result<MemoryInfo> GetMemoryInfo() override;

  Result<DeviceAddress> ReserveAddresses(Bytes size, Bytes alignment) override;
  Status FreeAddresses(DeviceAddress address, Bytes size) override;

  Result<MemoryHandle> Create(Bytes size) override;
  Status Release(MemoryHandle handle) override;
  Result<UniqueFd> Export(MemoryHandle handle) override;
  Result<MemoryHandle> Import(int fd, Bytes size) override;

  // SetAccess and Unmap wait for pieces of copies (a few milliseconds) in their range.
  Status Map(DeviceAddress address, Bytes size, MemoryHandle handle) override;
  Status SetAccess(DeviceAddress address, Bytes size, Access access) override;
  Status Unmap(DeviceAddress address, Bytes size) override;

  Status RegisterHost(void* address, Bytes size) override;
  Status UnregisterHost(void* address) override;

  Result<StreamId> CreateStream() override;
  Status DestroyStream(StreamId stream) override;  // waits for the stream's work
  Status CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) override;
  Status CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) override;
  Status Clear(StreamId stream, DeviceAddress address, Bytes size) override;
  Status Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                Bytes position) override;
  Result<EventId> RecordEvent(StreamId stream) override;
  Status WaitEvent(EventId event) override;

  Status Synchronize() override;

 private:
  using FileId = std::pair<dev_t, ino_t>;
  struct Handle {
    UniqueFd fd;
    FileId file;
    Bytes size;
    bool imported;
  };
  enum class Protection { kNone, kReadOnly, kReadWrite };
  struct Mapping {
    Bytes size;
    FileId file;
    Protection protection = Protection::kNone;
    int copying = 0;         // pieces of copies that touch it now
    bool unmapping = false;  // no new piece may start
  };
  struct Counted {
    UniqueFd witness;
    Bytes size;
    int held = 0;  // handles and mappings of this process
  };
  using Mappings = std::map<uint64_t, Mapping>;  // by address

  HostDriver(DeviceInfo device, bool owner) : device_(std::move(device)), owner_(owner) {}

  bool Reserved(uint64_t begin, uint64_t end) const REQUIRES(mutex_);
  // Waits until no copy touches [begin, end), and keeps new ones away if `unmapping`; the first
  // mapping in it. Nothing, at once or after the wait, unless the range consists of whole mappings
  // that nobody unmaps.
  Result<Mappings::iterator> QuietMappings(const char* call, uint64_t begin, uint64_t end,
                                           bool unmapping) REQUIRES(mutex_);
  // The mapping at `address` if it permits the access.
  Mapping* Accessible(uint64_t address, Access access, uint64_t* end) REQUIRES(mutex_);

  Status CheckHostRange(const char* call, uintptr_t begin, Bytes size) REQUIRES(mutex_);
  bool Registered(uintptr_t begin, Bytes size) REQUIRES(mutex_);  // within one registration
  using Piece = std::function<void(char* device, int64_t offset, int64_t size)>;
  Status Queue(const char* call, StreamId stream, DeviceAddress address, const void* host,
               Bytes size, Access access, Piece piece);
  Status RunPieces(DeviceAddress address, Bytes size, Access access, const Piece& piece);

  Status Count(int fd, FileId file, Bytes size) REQUIRES(mutex_);
  // A handle or mapping of the file begins or ends. Closing what lands in `gone` frees the file,
  // which takes its time: to be done without the lock.
  void Hold(FileId file) REQUIRES(mutex_);
  void LetGo(FileId file, std::vector<UniqueFd>& gone) REQUIRES(mutex_);
  // False if someone still holds it.
  bool Uncount(FileId file, std::vector<UniqueFd>& gone) REQUIRES(mutex_);
  Bytes Used(std::vector<UniqueFd>& gone) REQUIRES(mutex_);

  const DeviceInfo device_;
  const bool owner_;

  Mutex create_mutex_;  // taken before mutex_: two creations never fail for each other's sake
  Mutex mutex_;
  CondVar copied_;  // a mapping's `copying` has fallen to 0
  std::map<uint64_t, Bytes> reservations_ GUARDED_BY(mutex_);
  Mappings mappings_ GUARDED_BY(mutex_);
  std::map<uint64_t, Handle> handles_ GUARDED_BY(mutex_);
  std::map<FileId, Counted> counted_ GUARDED_BY(mutex_);  // empty unless owner_
  std::set<FileId> leaving_ GUARDED_BY(mutex_);           // counted, and not held here
  Bytes counted_bytes_ GUARDED_BY(mutex_);
  std::map<uintptr_t, Bytes> registrations_ GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<HostStream>> streams_ GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<HostEvent>> events_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_HOST_DRIVER_H_
