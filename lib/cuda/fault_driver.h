#ifndef TORPOR_LIB_CUDA_FAULT_DRIVER_H_
#define TORPOR_LIB_CUDA_FAULT_DRIVER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/call_kind.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Passes every call on to `driver`, counts it, and on request fails one or holds one up.
// Thread-safe.
//
// A call that is made to fail does not reach `driver`. WaitEvent is the exception: it must end with
// the work done and the event gone, so it waits first and reports the fault then.
class FaultDriver final : public Driver {
 public:
  // std::nullopt stands for any kind.
  using Which = std::optional<CallKind>;

  // `driver` must outlive this.
  explicit FaultDriver(Driver& driver) : driver_(driver) {}
  explicit FaultDriver(std::unique_ptr<Driver> driver)
      : owned_(std::move(driver)), driver_(*owned_) {}

  // Asked about each call before it does anything, in the caller's thread and without a lock; may
  // block. An error is returned by the call. Before the first call.
  void SetGate(std::function<Status(CallKind)> gate) { gate_ = std::move(gate); }

  // Makes the `n`th call of that kind from now on (1: the next one) return `status`, once. Several
  // faults may be pending.
  void FailNth(Which which, int64_t n, Status status);
  // Makes the `n`th call of that kind from now on block, before it does anything, until Continue.
  void StopAt(Which which, int64_t n);
  // True once a call has stopped; false at `deadline`.
  bool WaitUntilStopped(TimePoint deadline);
  // Lets stopped calls go on and forgets stops that were not reached.
  void Continue();
  // Forgets the faults that have not happened. The number of those.
  int ClearFaults();

  int64_t Calls(Which which) const;
  // Counts from 0 again; pending faults and stops keep their distance.
  void ResetCounts();

  const DeviceInfo& device() const override { return driver_.device(); }
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
  struct Trap {
    Which which;
    int64_t left;   // matching calls until it acts
    Status status;  // OK: stop
  };

  // Counts the call, blocks it at a stop; the fault it must report, or OK.
  Status Enter(CallKind kind);

  const std::unique_ptr<Driver> owned_;
  Driver& driver_;
  std::function<Status(CallKind)> gate_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::array<int64_t, kCallKinds> counts_ GUARDED_BY(mutex_) = {};
  std::vector<Trap> traps_ GUARDED_BY(mutex_);
  int stopped_ GUARDED_BY(mutex_) = 0;         // calls that block now
  uint64_t continues_ GUARDED_BY(mutex_) = 0;  // calls of Continue so far
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_FAULT_DRIVER_H_
