#include "lib/cuda/timed_driver.h"

#include <algorithm>
#include <chrono>

namespace torpor {

template <typename Call>
auto TimedDriver::Timed(CallKind kind, Call call) {
  const TimePoint start = std::chrono::steady_clock::now();
  auto result = call();
  const Duration took = std::chrono::steady_clock::now() - start;
  Counts& counts = counts_[static_cast<size_t>(kind)];
  const auto* const bound = std::lower_bound(kBounds.begin(), kBounds.end(), took);
  counts.calls[static_cast<size_t>(bound - kBounds.begin())].fetch_add(1,
                                                                       std::memory_order_relaxed);
  counts.nanoseconds.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count(),
                               std::memory_order_relaxed);
  if (!result.ok()) counts.errors.fetch_add(1, std::memory_order_relaxed);
  return result;
}

TimedDriver::Stats TimedDriver::stats(CallKind kind) const {
  const Counts& counts = counts_[static_cast<size_t>(kind)];
  Stats stats;
  for (size_t i = 0; i < stats.calls.size(); ++i) {
    stats.calls[i] = counts.calls[i].load(std::memory_order_relaxed);
  }
  stats.total = std::chrono::nanoseconds(counts.nanoseconds.load(std::memory_order_relaxed));
  stats.errors = counts.errors.load(std::memory_order_relaxed);
  return stats;
}

Result<MemoryInfo> TimedDriver::GetMemoryInfo() {
  return Timed(CallKind::kGetMemoryInfo, [&] { return driver_.GetMemoryInfo(); });
}

Result<DeviceAddress> TimedDriver::ReserveAddresses(Bytes size, Bytes alignment) {
  return Timed(CallKind::kReserveAddresses,
               [&] { return driver_.ReserveAddresses(size, alignment); });
}

Status TimedDriver::FreeAddresses(DeviceAddress address, Bytes size) {
  return Timed(CallKind::kFreeAddresses, [&] { return driver_.FreeAddresses(address, size); });
}

Result<MemoryHandle> TimedDriver::Create(Bytes size) {
  return Timed(CallKind::kCreate, [&] { return driver_.Create(size); });
}

Status TimedDriver::Release(MemoryHandle handle) {
  return Timed(CallKind::kRelease, [&] { return driver_.Release(handle); });
}

Result<UniqueFd> TimedDriver::Export(MemoryHandle handle) {
  return Timed(CallKind::kExport, [&] { return driver_.Export(handle); });
}

Result<MemoryHandle> TimedDriver::Import(int fd, Bytes size) {
  return Timed(CallKind::kImport, [&] { return driver_.Import(fd, size); });
}

Status TimedDriver::Map(DeviceAddress address, Bytes size, MemoryHandle handle) {
  return Timed(CallKind::kMap, [&] { return driver_.Map(address, size, handle); });
}

Status TimedDriver::SetAccess(DeviceAddress address, Bytes size, Access access) {
  return Timed(CallKind::kSetAccess, [&] { return driver_.SetAccess(address, size, access); });
}

Status TimedDriver::Unmap(DeviceAddress address, Bytes size) {
  return Timed(CallKind::kUnmap, [&] { return driver_.Unmap(address, size); });
}

Status TimedDriver::RegisterHost(void* address, Bytes size) {
  return Timed(CallKind::kRegisterHost, [&] { return driver_.RegisterHost(address, size); });
}

Status TimedDriver::UnregisterHost(void* address) {
  return Timed(CallKind::kUnregisterHost, [&] { return driver_.UnregisterHost(address); });
}

Result<StreamId> TimedDriver::CreateStream() {
  return Timed(CallKind::kCreateStream, [&] { return driver_.CreateStream(); });
}

Status TimedDriver::DestroyStream(StreamId stream) {
  return Timed(CallKind::kDestroyStream, [&] { return driver_.DestroyStream(stream); });
}

Status TimedDriver::CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) {
  return Timed(CallKind::kCopyToHost, [&] { return driver_.CopyToHost(stream, to, from, size); });
}

Status TimedDriver::CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) {
  return Timed(CallKind::kCopyToDevice,
               [&] { return driver_.CopyToDevice(stream, to, from, size); });
}

Status TimedDriver::Clear(StreamId stream, DeviceAddress address, Bytes size) {
  return Timed(CallKind::kClear, [&] { return driver_.Clear(stream, address, size); });
}

Status TimedDriver::Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                           Bytes position) {
  return Timed(CallKind::kDigest, [&] { return driver_.Digest(stream, to, from, size, position); });
}

Result<EventId> TimedDriver::RecordEvent(StreamId stream) {
  return Timed(CallKind::kRecordEvent, [&] { return driver_.RecordEvent(stream); });
}

Status TimedDriver::WaitEvent(EventId event) {
  return Timed(CallKind::kWaitEvent, [&] { return driver_.WaitEvent(event); });
}

Status TimedDriver::Synchronize() {
  return Timed(CallKind::kSynchronize, [&] { return driver_.Synchronize(); });
}

}  // namespace torpor
