#include "lib/cuda/fault_driver.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace torpor {

void FaultDriver::FailNth(Which which, int64_t n, Status status) {
  MutexLock lock(mutex_);
  traps_.push_back({which, n, std::move(status)});
}

void FaultDriver::StopAt(Which which, int64_t n) {
  MutexLock lock(mutex_);
  traps_.push_back({which, n, Status::Ok()});
}

bool FaultDriver::WaitUntilStopped(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (stopped_ == 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) return stopped_ > 0;
  }
  return true;
}

void FaultDriver::Continue() {
  MutexLock lock(mutex_);
  traps_.erase(std::remove_if(traps_.begin(), traps_.end(),
                              [](const Trap& trap) { return trap.status.ok(); }),
               traps_.end());
  stopped_ = 0;
  ++continues_;
  changed_.NotifyAll();
}

int FaultDriver::ClearFaults() {
  MutexLock lock(mutex_);
  const size_t before = traps_.size();
  traps_.erase(std::remove_if(traps_.begin(), traps_.end(),
                              [](const Trap& trap) { return !trap.status.ok(); }),
               traps_.end());
  return static_cast<int>(before - traps_.size());
}

int64_t FaultDriver::Calls(Which which) const {
  MutexLock lock(mutex_);
  if (which.has_value()) return counts_[static_cast<size_t>(*which)];
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

void FaultDriver::ResetCounts() {
  MutexLock lock(mutex_);
  counts_.fill(0);
}

Status FaultDriver::Enter(CallKind kind) {
  if (gate_ != nullptr) TORPOR_RETURN_IF_ERROR(gate_(kind));
  MutexLock lock(mutex_);
  ++counts_[static_cast<size_t>(kind)];
  Status fault;
  bool stop = false;
  for (auto trap = traps_.begin(); trap != traps_.end();) {
    if (trap->which.value_or(kind) != kind || --trap->left > 0) {
      ++trap;
      continue;
    }
    if (trap->status.ok()) {
      stop = true;
    } else if (fault.ok()) {
      fault = std::move(trap->status);
    }
    trap = traps_.erase(trap);
  }
  if (stop) {
    ++stopped_;
    changed_.NotifyAll();
    const uint64_t continues = continues_;
    while (continues == continues_) changed_.Wait(mutex_);
  }
  return fault;
}

Result<MemoryInfo> FaultDriver::GetMemoryInfo() {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kGetMemoryInfo));
  return driver_.GetMemoryInfo();
}

Result<DeviceAddress> FaultDriver::ReserveAddresses(Bytes size, Bytes alignment) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kReserveAddresses));
  return driver_.ReserveAddresses(size, alignment);
}

Status FaultDriver::FreeAddresses(DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kFreeAddresses));
  return driver_.FreeAddresses(address, size);
}

Result<MemoryHandle> FaultDriver::Create(Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kCreate));
  return driver_.Create(size);
}

Status FaultDriver::Release(MemoryHandle handle) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kRelease));
  return driver_.Release(handle);
}

Result<UniqueFd> FaultDriver::Export(MemoryHandle handle) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kExport));
  return driver_.Export(handle);
}

Result<MemoryHandle> FaultDriver::Import(int fd, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kImport));
  return driver_.Import(fd, size);
}

Status FaultDriver::Map(DeviceAddress address, Bytes size, MemoryHandle handle) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kMap));
  return driver_.Map(address, size, handle);
}

Status FaultDriver::SetAccess(DeviceAddress address, Bytes size, Access access) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kSetAccess));
  return driver_.SetAccess(address, size, access);
}

Status FaultDriver::Unmap(DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kUnmap));
  return driver_.Unmap(address, size);
}

Status FaultDriver::RegisterHost(void* address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kRegisterHost));
  return driver_.RegisterHost(address, size);
}

Status FaultDriver::UnregisterHost(void* address) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kUnregisterHost));
  return driver_.UnregisterHost(address);
}

Result<StreamId> FaultDriver::CreateStream() {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kCreateStream));
  return driver_.CreateStream();
}

Status FaultDriver::DestroyStream(StreamId stream) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kDestroyStream));
  return driver_.DestroyStream(stream);
}

Status FaultDriver::CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kCopyToHost));
  return driver_.CopyToHost(stream, to, from, size);
}

Status FaultDriver::CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kCopyToDevice));
  return driver_.CopyToDevice(stream, to, from, size);
}

Status FaultDriver::Clear(StreamId stream, DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kClear));
  return driver_.Clear(stream, address, size);
}

Status FaultDriver::Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                           Bytes position) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kDigest));
  return driver_.Digest(stream, to, from, size, position);
}

Result<EventId> FaultDriver::RecordEvent(StreamId stream) {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kRecordEvent));
  return driver_.RecordEvent(stream);
}

Status FaultDriver::WaitEvent(EventId event) {
  const Status fault = Enter(CallKind::kWaitEvent);
  const Status status = driver_.WaitEvent(event);
  return fault.ok() ? status : fault;
}

Status FaultDriver::Synchronize() {
  TORPOR_RETURN_IF_ERROR(Enter(CallKind::kSynchronize));
  return driver_.Synchronize();
}

}  // namespace torpor
