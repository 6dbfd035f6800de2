// The streams of HostDriver: copies, digests and events.

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "lib/cuda/driver_error.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

constexpr int64_t kPiece = MiB(4).value();

}  // namespace

Result<StreamId> HostDriver::CreateStream() {
  try {
    auto stream = std::make_shared<HostStream>();
    MutexLock lock(mutex_);
    const uint64_t id = ++last_id_;
    streams_[id] = std::move(stream);
    return StreamId(id);
  } catch (const std::system_error& error) {
    return ErrnoStatus(error.code().value(), "start a thread for a stream");
  }
}

Status HostDriver::DestroyStream(StreamId stream) {
  std::shared_ptr<HostStream> destroyed;  // outside the lock
  MutexLock lock(mutex_);
  const auto it = streams_.find(stream.value());
  if (it == streams_.end()) return DriverInvalidValue("destroy stream: no such stream");
  destroyed = std::move(it->second);
  streams_.erase(it);
  return Status::Ok();
}

HostDriver::Mapping* HostDriver::Accessible(uint64_t address, Access access, uint64_t* end) {
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return nullptr;
  Mapping& mapping = (--it)->second;
  *end = it->first + mapping.size.size();
  const bool permitted = access == Access::kReadOnly ? mapping.protection != Protection::kNone
                                                     : mapping.protection == Protection::kReadWrite;
  return *end > address && permitted && !mapping.unmapping ? &mapping : nullptr;
}

Status HostDriver::Queue(const char* call, StreamId stream, DeviceAddress address, const void* host,
                         Bytes size, Access access, Piece piece) {
  if (size < Bytes(0)) return BadRange(call, address, size, "negative size");
  std::shared_ptr<HostStream> queue;
  {
    MutexLock lock(mutex_);
    const auto it = streams_.find(stream.value());
    if (it == streams_.end()) return BadRange(call, address, size, "no such stream");
    const uint64_t end = address.value() + size.size();
    for (uint64_t at = address.value(); at < end;) {
      if (Accessible(at, access, &at) == nullptr) {
        return BadRange(call, address, size, "not mapped with that access");
      }
    }
    if (size > Bytes(0) && host != nullptr) {
      TORPOR_RETURN_IF_ERROR(CheckHostRange(call, reinterpret_cast<uintptr_t>(host), size));
    }
    queue = it->second;
  }
  queue->Push([this, address, size, access, piece = std::move(piece)] {
    return RunPieces(address, size, access, piece);
  });
  return Status::Ok();
}

Status HostDriver::RunPieces(DeviceAddress address, Bytes size, Access access, const Piece& piece) {
  for (int64_t offset = 0; offset < size.value();) {
    const uint64_t at = address.value() + offset;
    Mapping* mapping = nullptr;  // stays where it is while `copying` is not 0
    uint64_t end = 0;
    {
      MutexLock lock(mutex_);
      mapping = Accessible(at, access, &end);
      if (mapping == nullptr) {
        return Internal("DRIVER_ILLEGAL_ADDRESS", "memory was unmapped before a copy was done");
      }
      ++mapping->copying;
    }
    const int64_t length =
        std::min({kPiece, size.value() - offset, static_cast<int64_t>(end - at)});
    piece(reinterpret_cast<char*>(at), offset, length);
    {
      MutexLock lock(mutex_);
      if (--mapping->copying == 0) copied_.NotifyAll();
    }
    offset += length;
  }
  return Status::Ok();
}

Status HostDriver::CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) {
  if (to == nullptr) return DriverInvalidValue("copy to host: no address");
  return Queue("copy to host", stream, from, to, size, Access::kReadOnly,
               [to](const char* device, int64_t offset, int64_t length) {
                 std::memcpy(static_cast<char*>(to) + offset, device, length);
               });
}

Status HostDriver::CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) {
  if (from == nullptr) return DriverInvalidValue("copy to device: no address");
  return Queue("copy to device", stream, to, from, size, Access::kReadWrite,
               [from](char* device, int64_t offset, int64_t length) {
                 std::memcpy(device, static_cast<const char*>(from) + offset, length);
               });
}

Status HostDriver::Clear(StreamId stream, DeviceAddress address, Bytes size) {
  return Queue("clear", stream, address, nullptr, size, Access::kReadWrite,
               [](char* device, int64_t, int64_t length) { std::memset(device, 0, length); });
}

Status HostDriver::Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                          Bytes position) {
  TORPOR_RETURN_IF_ERROR(CheckDigest(to, from, size, position));
  const Bytes results(DigestParts(size, position) * static_cast<int64_t>(sizeof *to));
  {
    MutexLock lock(mutex_);
    if (!Registered(reinterpret_cast<uintptr_t>(to), results)) {
      return BadRange("digest", from, size, "the results' place is not registered");
    }
  }
  return Queue("digest", stream, from, nullptr, size, Access::kReadOnly,
               [to, position](const char* device, int64_t offset, int64_t length) {
                 const int64_t first = position / kDigestPart;
                 while (length > 0) {
                   const Bytes at = position + Bytes(offset);
                   const int64_t part = at / kDigestPart;
                   const Bytes step = std::min(Bytes(length), kDigestPart * (part + 1) - at);
                   PartDigest& result = to[part - first];
                   if (offset == 0 || at % kDigestPart == Bytes(0)) result = PartDigest();
                   result += DigestBytes(reinterpret_cast<const std::byte*>(device), step, at);
                   device += step.value();
                   offset += step.value();
                   length -= step.value();
                 }
               });
}

Result<EventId> HostDriver::RecordEvent(StreamId stream) {
  MutexLock lock(mutex_);
  const auto it = streams_.find(stream.value());
  if (it == streams_.end()) return DriverInvalidValue("record event: no such stream");
  const uint64_t id = ++last_id_;
  events_[id] = it->second->Record();
  return EventId(id);
}

Status HostDriver::WaitEvent(EventId event) {
  std::shared_ptr<HostEvent> waited;
  {
    MutexLock lock(mutex_);
    const auto it = events_.find(event.value());
    if (it == events_.end()) return DriverInvalidValue("wait event: no such event");
    waited = std::move(it->second);
    events_.erase(it);
  }
  return waited->Wait();
}

Status HostDriver::Synchronize() {
  std::vector<std::shared_ptr<HostEvent>> events;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, stream] : streams_) events.push_back(stream->Record());
  }
  Status first;
  for (const auto& event : events) {
    Status status = event->Wait();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace torpor
