#include "lib/cuda/digest.h"

#include <cstring>

#include "lib/cuda/digest_word.h"

namespace torpor {

PartDigest DigestBytes(const std::byte* data, Bytes size, Bytes position) {
  // Several sums, so that no addition waits for the one before.
  constexpr int kSums = 4;
  unsigned __int128 sums[kSums] = {};
  const uint64_t words = size.size() / 16;
  uint64_t counter = DigestCounter(position.size() / 16);
  const auto add = [&](uint64_t word, int sum) {
    uint64_t halves[2];
    std::memcpy(halves, data + word * 16, sizeof halves);
    sums[sum] += DigestWord(counter + sum * kDigestStep, halves[0], halves[1]);
  };
  uint64_t word = 0;
  for (; word + kSums <= words; word += kSums) {
    for (int sum = 0; sum < kSums; ++sum) add(word + sum, sum);
    counter += kSums * kDigestStep;
  }
  for (int sum = 0; word < words; ++word, ++sum) add(word, sum);
  const unsigned __int128 total = sums[0] + sums[1] + sums[2] + sums[3];
  return {static_cast<uint64_t>(total), static_cast<uint64_t>(total >> 64)};
}

}  // namespace torpor
