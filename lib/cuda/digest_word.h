#ifndef TORPOR_LIB_CUDA_DIGEST_WORD_H_
#define TORPOR_LIB_CUDA_DIGEST_WORD_H_

// What DigestBytes and the kernel in digest.cu have in common. No standard library: the kernel is
// compiled without one.
#include <stdint.h>

namespace torpor {

// The keys of the 16-byte word number i come from the counter DigestCounter(i).
constexpr uint64_t kDigestSeed = 0x243f6a8885a308d3;
constexpr uint64_t kDigestStep = 0x9e3779b97f4a7c15;
constexpr uint64_t kDigestMixFirst = 0xbf58476d1ce4e5b9;
constexpr uint64_t kDigestMixSecond = 0x94d049bb133111eb;

constexpr uint64_t DigestCounter(uint64_t word) { return kDigestSeed + word * kDigestStep; }

// The product that a word with the halves `x` and `y` adds to the sum.
constexpr unsigned __int128 DigestWord(uint64_t counter, uint64_t x, uint64_t y) {
  uint64_t first = (counter ^ (counter >> 32)) * kDigestMixFirst;
  first ^= first >> 32;
  uint64_t second = first * kDigestMixSecond;
  second ^= second >> 32;
  return static_cast<unsigned __int128>(x + first) * (y + second);
}

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DIGEST_WORD_H_
