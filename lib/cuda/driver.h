#ifndef TORPOR_LIB_CUDA_DRIVER_H_
#define TORPOR_LIB_CUDA_DRIVER_H_

#include <cstdint>
#include <string>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/digest.h"

namespace torpor {

// A physical allocation, created or imported by this process. Never 0.
using MemoryHandle = Strong<struct MemoryHandleTag, uint64_t>;
// An ordered queue of copies on the device.
using StreamId = Strong<struct StreamIdTag, uint64_t>;
// A point in a stream.
using EventId = Strong<struct EventIdTag, uint64_t>;

enum class Access { kReadOnly, kReadWrite };

struct DeviceInfo {
  std::string kind;  // "cuda" or "host"
  std::string uuid;  // "GPU-8-4-4-4-12 hex", "MIG-..." or the name that a host device was given
  std::string name;  // "NVIDIA H200"
  Bytes total{};
  Bytes granularity{};  // sizes, offsets and mapped addresses are multiples of it
  // Device memory that this process's own context takes, as measured when it came up; -1: unknown.
  Bytes context{-1};
  int numa_node = -1;  // of the host memory that is nearest; -1: unknown, or all alike
};

struct MemoryInfo {
  Bytes free{};
  Bytes total{};
};

// The calls of the CUDA driver that Torpor is made of: virtual memory management and copies
// between it and host memory, for one device. CudaDriver makes the calls; HostDriver behaves alike
// on files; FaultDriver makes another one fail.
//
// The model, in the order of a life:
//   1. ReserveAddresses gives a range that nothing is mapped in.
//   2. Create gives physical memory, zeroed, without an address; Import gives this process its own
//      handle on memory that another one exported. Size, offset and address are multiples of
//      `granularity`.
//   3. Map puts a whole handle into a reserved range (never a part, never at an offset into it; a
//      range may cross adjacent reservations). The same handle may be mapped many times.
//   4. SetAccess makes mapped ranges usable; one call may span adjacent mappings.
//   5. Unmap takes away whole mappings; one call may span adjacent ones. It neither waits for
//      running work nor checks for it.
//   6. Release drops the handle; mappings keep the memory. FreeAddresses wants an unmapped range.
// Physical memory is free when every mapping, handle and exported descriptor, in whatever process,
// is gone. An exported descriptor keeps the bytes alive without its exporter.
//
// Errors: INVALID_ARGUMENT with reason DRIVER_INVALID_VALUE for anything that breaks the rules
// above (UNIMPLEMENTED DRIVER_NOT_SUPPORTED for a mapping that has not the size of its handle),
// RESOURCE_EXHAUSTED with DEVICE_OUT_OF_MEMORY, otherwise INTERNAL with the driver's own error
// name. A call that fails has changed nothing.
//
// Thread-safe. Any thread may call; no call needs thread-local set-up by the caller.
class Driver {
 public:
  virtual ~Driver() = default;

  virtual const DeviceInfo& device() const = 0;
  // Free memory of the whole device, as the driver sees it now. CUDA: brings up the context.
  virtual Result<MemoryInfo> GetMemoryInfo() = 0;

  // `alignment` 0 means the granularity. Takes no memory.
  virtual Result<DeviceAddress> ReserveAddresses(Bytes size, Bytes alignment) = 0;
  // Exactly a range that ReserveAddresses gave.
  virtual Status FreeAddresses(DeviceAddress address, Bytes size) = 0;

  virtual Result<MemoryHandle> Create(Bytes size) = 0;
  virtual Status Release(MemoryHandle handle) = 0;
  // A descriptor (close-on-exec) of a handle that this process created; INVALID_ARGUMENT for an
  // imported one. RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED.
  virtual Result<UniqueFd> Export(MemoryHandle handle) = 0;
  // Borrows `fd`. `size` is the size the exporter gave at Create.
  virtual Result<MemoryHandle> Import(int fd, Bytes size) = 0;

  virtual Status Map(DeviceAddress address, Bytes size, MemoryHandle handle) = 0;
  virtual Status SetAccess(DeviceAddress address, Bytes size, Access access) = 0;
  virtual Status Unmap(DeviceAddress address, Bytes size) = 0;

  // Makes host memory a fast and asynchronous end of copies. A copy must not cross the border of
  // two registrations. Address and size: multiples of the system's page size. RESOURCE_EXHAUSTED
  // HOST_MEMORY_NOT_PINNED if the system refuses.
  virtual Status RegisterHost(void* address, Bytes size) = 0;
  virtual Status UnregisterHost(void* address) = 0;

  virtual Result<StreamId> CreateStream() = 0;
  virtual Status DestroyStream(StreamId stream) = 0;
  // Copies, Clear and Digest are queued and may still run on return: all memory involved must stay
  // mapped until a later event of the stream has been waited for. A range that is not mapped with
  // the access needed is refused at once; an error of the work itself is reported by WaitEvent.
  virtual Status CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) = 0;
  virtual Status CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) = 0;
  virtual Status Clear(StreamId stream, DeviceAddress address, Bytes size) = 0;
  // Digests `size` bytes that lie at `position`: one PartDigest for each part of kDigestPart bytes
  // of positions that they touch, in order, DigestParts(size, position) in all. Size, position and
  // address are multiples of 16; the results' place lies within one registration. UNIMPLEMENTED
  // DRIVER_NOT_SUPPORTED where the device cannot do it.
  virtual Status Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                        Bytes position) = 0;
  // Marks the work queued so far. The event is destroyed by WaitEvent.
  virtual Result<EventId> RecordEvent(StreamId stream) = 0;
  // Blocks without spinning until the event's work is done; destroys the event, also on failure.
  virtual Status WaitEvent(EventId event) = 0;

  // Blocks until all work that this process has given to the device is done. FAILED_PRECONDITION
  // with STREAM_CAPTURE_ACTIVE while a thread captures a graph where that can be told beforehand;
  // otherwise the call breaks the capture.
  virtual Status Synchronize() = 0;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DRIVER_H_
