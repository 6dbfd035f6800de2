#ifndef TORPOR_LIB_CUDA_TIMED_DRIVER_H_
#define TORPOR_LIB_CUDA_TIMED_DRIVER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/call_kind.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Passes every call on to `driver` and counts how long it took, by kind: two readings of the clock
// and four additions for each call, no lock. Thread-safe.
class TimedDriver final : public Driver {
 public:
  // Upper ends of the buckets, included; what takes longer is in a last one.
  static constexpr std::array<Duration, 7> kBounds = {std::chrono::microseconds(10),
                                                      std::chrono::microseconds(100),
                                                      milliseconds(1),
                                                      milliseconds(10),
                                                      milliseconds(100),
                                                      seconds(1),
                                                      seconds(10)};
  // Read while calls go on: each number is right, their sums may be apart by a few calls.
  struct Stats {
    std::array<uint64_t, kBounds.size() + 1> calls = {};  // by duration
    Duration total{};
    uint64_t errors = 0;  // of these calls
  };

  // `driver` must outlive this.
  explicit TimedDriver(Driver& driver) : driver_(driver) {}
  explicit TimedDriver(std::unique_ptr<Driver> driver)
      : owned_(std::move(driver)), driver_(*owned_) {}

  Stats stats(CallKind kind) const;

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
  struct Counts {
    std::array<std::atomic<uint64_t>, kBounds.size() + 1> calls = {};
    std::atomic<int64_t> nanoseconds{0};
    std::atomic<uint64_t> errors{0};
  };
  template <typename Call>
  auto Timed(CallKind kind, Call call);

  const std::unique_ptr<Driver> owned_;
  Driver& driver_;
  std::array<Counts, kCallKinds> counts_;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_TIMED_DRIVER_H_
