#ifndef TORPOR_LIB_BASE_UNITS_H_
#define TORPOR_LIB_BASE_UNITS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lib/base/status.h"

namespace torpor {

// A number that knows what it counts: values of different `Tag` do not mix. `Rep` is the type that
// is stored and sent.
template <typename Tag, typename Rep>
class Strong {
 public:
  constexpr Strong() = default;
  constexpr explicit Strong(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }

  friend constexpr bool operator==(Strong a, Strong b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(Strong a, Strong b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(Strong a, Strong b) { return a.value_ < b.value_; }
  friend constexpr bool operator>(Strong a, Strong b) { return b < a; }
  friend constexpr bool operator<=(Strong a, Strong b) { return !(b < a); }
  friend constexpr bool operator>=(Strong a, Strong b) { return !(a < b); }

 protected:
  Rep value_{};
};

using WorkerId = Strong<struct WorkerIdTag, uint64_t>;        // never used twice by one daemon
using SegmentId = Strong<struct SegmentIdTag, uint64_t>;      // likewise
using ExtentId = Strong<struct ExtentIdTag, uint64_t>;        // likewise
using ArenaId = Strong<struct ArenaIdTag, uint64_t>;          // likewise
using OperationId = Strong<struct OperationIdTag, uint64_t>;  // likewise

// An amount of memory, or an offset in a range. Signed, so that a difference is visible.
class Bytes : public Strong<struct BytesTag, int64_t> {
 public:
  using Strong::Strong;
  constexpr uint64_t size() const { return static_cast<uint64_t>(value_); }
  constexpr Bytes& operator+=(Bytes b) { return value_ += b.value_, *this; }
  constexpr Bytes& operator-=(Bytes b) { return value_ -= b.value_, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.value_ + b.value_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.value_ - b.value_); }
  friend constexpr Bytes operator*(Bytes a, int64_t n) { return Bytes(a.value_ * n); }
  friend constexpr int64_t operator/(Bytes a, Bytes b) { return a.value_ / b.value_; }
  friend constexpr Bytes operator%(Bytes a, Bytes b) { return Bytes(a.value_ % b.value_); }
};

constexpr Bytes KiB(int64_t n) { return Bytes(n * 1024); }
constexpr Bytes MiB(int64_t n) { return Bytes(n * 1024 * 1024); }
constexpr Bytes GiB(int64_t n) { return Bytes(n * 1024 * 1024 * 1024); }

// The least multiple of `unit` (> 0) that is not less than `n` (>= 0, and far from the maximum).
constexpr Bytes RoundUp(Bytes n, Bytes unit) {
  return Bytes((n.value() + unit.value() - 1) / unit.value() * unit.value());
}

// An address in the device's address space of one process.
class DeviceAddress : public Strong<struct DeviceAddressTag, uint64_t> {
 public:
  using Strong::Strong;
  friend constexpr DeviceAddress operator+(DeviceAddress a, Bytes b) {
    return DeviceAddress(a.value_ + b.size());
  }
  friend constexpr Bytes operator-(DeviceAddress a, DeviceAddress b) {
    return Bytes(static_cast<int64_t>(a.value_ - b.value_));
  }
};

// "64GiB", "512 MiB", "1.5GiB", "4096" (bytes); units B, KiB, MiB, GiB, TiB and, decimal, kB, MB,
// GB, TB. INVALID_ARGUMENT BAD_SIZE for anything else, for a negative size and for one of 2^62
// bytes or more.
Result<Bytes> ParseBytes(std::string_view text);

// For people: "27.50 GiB", "2.00 MiB", "512 B".
std::string FormatBytes(Bytes bytes);

// A tag or worker name: 1 to 63 characters out of [A-Za-z0-9_.-], the first one a letter or digit.
// INVALID_ARGUMENT with `reason` otherwise.
Status CheckName(std::string_view name, const char* what, const char* reason);

}  // namespace torpor

namespace std {
template <typename Tag, typename Rep>
struct hash<torpor::Strong<Tag, Rep>> {
  size_t operator()(torpor::Strong<Tag, Rep> v) const { return hash<Rep>()(v.value()); }
};
}  // namespace std

#endif  // TORPOR_LIB_BASE_UNITS_H_
