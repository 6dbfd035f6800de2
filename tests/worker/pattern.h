#ifndef TORPOR_TESTS_WORKER_PATTERN_H_
#define TORPOR_TESTS_WORKER_PATTERN_H_

#include <cstdint>
#include <optional>

namespace torpor {

// Bytes that differ from place to place and from seed to seed (splitmix64 of the word's index), so
// that a chunk in a wrong place is noticed. Sizes are multiples of 8.
inline uint64_t PatternWord(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline void FillPattern(void* memory, int64_t size, uint64_t seed) {
  auto* words = static_cast<uint64_t*>(memory);
  for (int64_t i = 0; i < size / 8; ++i) words[i] = PatternWord(seed, static_cast<uint64_t>(i));
}

// Offset of the first byte that is not the pattern's.
inline std::optional<int64_t> FindDifference(const void* memory, int64_t size, uint64_t seed) {
  const auto* words = static_cast<const uint64_t*>(memory);
  for (int64_t i = 0; i < size / 8; ++i) {
    const uint64_t difference = words[i] ^ PatternWord(seed, static_cast<uint64_t>(i));
    if (difference != 0) return i * 8 + __builtin_ctzll(difference) / 8;
  }
  return std::nullopt;
}

inline std::optional<int64_t> FindNonzero(const void* memory, int64_t size) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  for (int64_t i = 0; i < size; ++i) {
    if (bytes[i] != 0) return i;
  }
  return std::nullopt;
}

}  // namespace torpor

#endif  // TORPOR_TESTS_WORKER_PATTERN_H_
