#ifndef TORPOR_LIB_CUDA_DIGEST_H_
#define TORPOR_LIB_CUDA_DIGEST_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/units.h"

namespace torpor {

// The digest of a range of memory: a 128-bit number, the sum modulo 2^128 of what each of its
// 16-byte words gives. A word gives the product of its two halves, each with a key added that
// depends on the word's position:
//
//   sum over i of ((x[i] + k[2i]) mod 2^64) * ((y[i] + k[2i+1]) mod 2^64)
//
// So parts may be digested apart, in any order, and added; and the same bytes elsewhere give
// another digest. Positions are counted from a beginning that the caller chooses, such as that of a
// segment. It tells apart what differs by accident, not what was made to look alike:
// docs/decisions/0001-digest.md.
struct alignas(16) PartDigest {
  uint64_t low = 0;
  uint64_t high = 0;

  PartDigest& operator+=(const PartDigest& other) {
    low += other.low;
    high += other.high + (low < other.low ? 1 : 0);
    return *this;
  }
  friend PartDigest operator+(PartDigest a, const PartDigest& b) { return a += b; }
  friend bool operator==(const PartDigest& a, const PartDigest& b) {
    return a.low == b.low && a.high == b.high;
  }
  friend bool operator!=(const PartDigest& a, const PartDigest& b) { return !(a == b); }
};

// Another number whenever the same bytes get another digest.
constexpr int kDigestVersion = 1;

// The positions that Driver::Digest gives one PartDigest for begin at multiples of this.
constexpr Bytes kDigestPart = KiB(256);

// How many parts [position, position + size) touches.
constexpr int64_t DigestParts(Bytes size, Bytes position) {
  if (size <= Bytes(0)) return 0;
  return (position + size - Bytes(1)) / kDigestPart - position / kDigestPart + 1;
}

// The digest of `data`, which lies at `position`. `size` and `position` are multiples of 16, `data`
// may lie anywhere.
PartDigest DigestBytes(const std::byte* data, Bytes size, Bytes position);

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DIGEST_H_
