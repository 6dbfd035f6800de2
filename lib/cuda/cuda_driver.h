#ifndef TORPOR_LIB_CUDA_CUDA_DRIVER_H_
#define TORPOR_LIB_CUDA_CUDA_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

struct CUctx_st;
struct CUevent_st;
struct CUstream_st;

namespace torpor {

struct CudaApi;
class CudaDigest;

// A GPU or MIG instance through libcuda.so.1, which is loaded at run time.
//
// All work happens in the device's primary context, the one that the CUDA runtime and PyTorch use.
// It is retained at the first call that needs it (addresses, memory and mappings do not: only
// GetMemoryInfo, host memory and streams do) and current only during a call, so that the caller's
// thread keeps its own. Each call runs in relaxed stream capture mode: it neither breaks nor joins
// a graph capture, except Synchronize.
//
// Synchronize waits for everything in the primary context, the application's work included, and
// does nothing where that context is not up. During a capture in this process, which CUDA does not
// tell beforehand, it breaks the capture and then returns FAILED_PRECONDITION
// STREAM_CAPTURE_ACTIVE.
//
// A process that has called OpenDevice or Probe must not use CUDA in children that it forks.
class CudaDriver final : public Driver {
 public:
  struct Options {
    std::string uuid;  // "GPU-..." or "MIG-..."; empty: `ordinal`
    int ordinal = 0;   // among the devices that are visible to this process
    // Brings the context up at once and as small as it gets: waits that block instead of spinning,
    // the least stack, printf buffer and heap for kernels; and loads the kernel of Digest. These
    // are limits of the whole process: for the daemon, never for an application.
    bool small_context = false;
  };
  // NOT_FOUND NO_SUCH_DEVICE; UNAVAILABLE CUDA_LIBRARY_MISSING; UNIMPLEMENTED CUDA_DRIVER_TOO_OLD
  // or DRIVER_NOT_SUPPORTED where driver or device cannot do it; INTERNAL with CUDA's error name.
  static Result<std::unique_ptr<CudaDriver>> OpenDevice(const Options& options);

  enum class Presence {
    kNone,    // this machine (or container) has no NVIDIA device
    kUsable,  // `devices` of them
    kBroken,  // the driver is there, but gives no device: `error`
  };
  struct ProbeResult {
    Presence presence = Presence::kNone;
    int devices = 0;
    Status error;
  };
  static ProbeResult Probe();

  // Destroys streams and events and lets go of the context. Memory of handles and mappings that are
  // left stays in use until the process ends.
  ~CudaDriver() override;

  // `context` is known with `small_context` only, and if the management library is there.
  const DeviceInfo& device() const override { return device_; }
  Result<MemoryInfo> GetMemoryInfo() override;

  Result<DeviceAddress> ReserveAddresses(Bytes size, Bytes alignment) override;
  Status FreeAddresses(DeviceAddress address, Bytes size) override;

  Result<MemoryHandle> Create(Bytes size) override;
  Status Release(MemoryHandle handle) override;
  Result<UniqueFd> Export(MemoryHandle handle) override;
  Result<MemoryHandle> Import(int fd, Bytes size) override;

  Status Map(DeviceAddress address, Bytes size, MemoryHandle handle) override;
  Status SetAccess(DeviceAddress address, Bytes size, Access access) override;
  Status Unmap(DeviceAddress address, Bytes size) override;

  Status RegisterHost(void* address, Bytes size) override;
  Status UnregisterHost(void* address) override;

  Result<StreamId> CreateStream() override;
  Status DestroyStream(StreamId stream) override;
  Status CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) override;
  Status CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) override;
  Status Clear(StreamId stream, DeviceAddress address, Bytes size) override;
  Status Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                Bytes position) override;
  Result<EventId> RecordEvent(StreamId stream) override;
  Status WaitEvent(EventId event) override;

  Status Synchronize() override;

 private:
  CudaDriver(const CudaApi& api, int ordinal);

  Status Describe();            // fills device_
  Status RetainSmallContext();  // and measures it
  Result<CUctx_st*> Context();
  // Runs `body`, which returns a CUresult, in relaxed capture mode, and with the context current.
  template <typename Body>
  Status Call(const char* call, Bytes size, Body body);
  template <typename Body>
  Status CallInContext(const char* call, Bytes size, Body body);

  Result<unsigned long long> FindHandle(const char* call, MemoryHandle handle);
  Result<CUstream_st*> FindStream(const char* call, StreamId stream);
  bool Readable(DeviceAddress address, Bytes size);
  // The device's address of host memory that lies within one registration.
  Result<DeviceAddress> FindRegistered(const char* call, const void* address, Bytes size);

  const CudaApi& api_;
  const int ordinal_;
  DeviceInfo device_;  // constant after OpenDevice
  bool rdma_capable_ = false;

  Mutex context_mutex_;  // held while the context comes up
  std::atomic<CUctx_st*> context_{nullptr};

  UniqueFd first_export_;  // of a small context: keeps later exports quick

  const std::unique_ptr<CudaDigest> digest_;

  struct Mapping {
    Bytes size;
    bool readable = false;
  };
  // CUDA crashes on handles and pointers that are gone, and unmaps what is not mapped without a
  // word; a kernel that touches what it may not ruins its context. So ids of ours, never used
  // again, and lists of mappings and registrations.
  Mutex mutex_;
  std::map<uint64_t, unsigned long long> handles_ GUARDED_BY(mutex_);
  std::map<uint64_t, Mapping> mappings_ GUARDED_BY(mutex_);      // by address
  std::map<uintptr_t, Bytes> registrations_ GUARDED_BY(mutex_);  // likewise
  std::map<uint64_t, CUstream_st*> streams_ GUARDED_BY(mutex_);
  std::map<uint64_t, CUevent_st*> events_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_CUDA_DRIVER_H_
