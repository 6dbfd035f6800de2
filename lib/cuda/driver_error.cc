#include "lib/cuda/driver_error.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace torpor {

Status DriverInvalidValue(std::string message) {
  return InvalidArgument("DRIVER_INVALID_VALUE", std::move(message));
}

Status DriverNotSupported(std::string message) {
  return Status(Code::kUnimplemented, "DRIVER_NOT_SUPPORTED", std::move(message));
}

Status DeviceOutOfMemory(std::string message, Bytes requested) {
  return ResourceExhausted("DEVICE_OUT_OF_MEMORY", std::move(message))
      .With("requested_bytes", requested.value());
}

Status BadRange(const char* call, DeviceAddress address, Bytes size, const char* why) {
  char text[200];
  std::snprintf(text, sizeof text, "%s of %lld bytes at 0x%llx: %s", call,
                static_cast<long long>(size.value()),
                static_cast<unsigned long long>(address.value()), why);
  return DriverInvalidValue(text).With("requested_bytes", size.value());
}

Status CheckMappable(const char* call, DeviceAddress address, Bytes size, Bytes granularity) {
  TORPOR_RETURN_IF_ERROR(CheckSize(call, size, granularity));
  if (address.value() == 0 || address.value() % granularity.size() != 0) {
    return BadRange(call, address, size, "the address is not aligned");
  }
  if (address.value() + size.size() < address.value()) {
    return BadRange(call, address, size, "the range wraps around");
  }
  return Status::Ok();
}

Status CheckSize(const char* call, Bytes size, Bytes granularity) {
  if (size > Bytes(0) && size % granularity == Bytes(0)) return Status::Ok();
  return DriverInvalidValue(std::string(call) + " of " + std::to_string(size.value()) +
                            " bytes: not a multiple of " + std::to_string(granularity.value()))
      .With("requested_bytes", size.value());
}

Status CheckAlignment(const char* call, Bytes alignment) {
  if (alignment >= Bytes(0) && (alignment.size() & (alignment.size() - 1)) == 0) {
    return Status::Ok();
  }
  return DriverInvalidValue(std::string(call) + ": the alignment " +
                            std::to_string(alignment.value()) + " is no power of two");
}

Status CheckDigest(const PartDigest* to, DeviceAddress from, Bytes size, Bytes position) {
  constexpr Bytes kWord(16);
  if (to == nullptr || reinterpret_cast<uintptr_t>(to) % alignof(PartDigest) != 0) {
    return BadRange("digest", from, size, "no place for the result");
  }
  if (size < Bytes(0) || position < Bytes(0)) {
    return BadRange("digest", from, size, "negative size or position");
  }
  if (size % kWord != Bytes(0) || position % kWord != Bytes(0) ||
      from.value() % kWord.size() != 0) {
    return BadRange("digest", from, size, "address, size or position is no multiple of 16");
  }
  if (from.value() + size.size() < from.value()) {
    return BadRange("digest", from, size, "the range wraps around");
  }
  return Status::Ok();
}

Status CheckPages(const char* call, const void* address, Bytes size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (begin != 0 && begin % page == 0 && size > Bytes(0) && size.size() % page == 0 &&
      begin + size.size() > begin) {
    return Status::Ok();
  }
  return BadRange(call, DeviceAddress(begin), size, "not a range of whole pages");
}

}  // namespace torpor
