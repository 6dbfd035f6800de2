// The kernel behind CudaDriver::Digest. clang compiles it to PTX without a CUDA toolkit, so what a
// toolkit's headers would define is spelled out here.

#include "lib/cuda/digest_word.h"

namespace {

constexpr uint64_t kPartWords = (256 << 10) / 16;  // kDigestPart
constexpr unsigned kThreads = 256;                 // kDigestThreads
constexpr unsigned kUnroll = 8;                    // loads in flight in each thread
constexpr unsigned kBlocks = 4;  // that share a multiprocessor: leaves registers for those loads

typedef uint64_t Word __attribute__((ext_vector_type(2)));

struct Sum {
  uint64_t low, high;
};

__attribute__((device)) inline void Add(Sum& sum, uint64_t low, uint64_t high) {
  sum.low += low;
  sum.high += high + (sum.low < low ? 1 : 0);
}

// Nothing of it will be read again: first to leave the caches.
__attribute__((device)) inline Word Load(const Word* from) {
  Word word;
  asm("ld.global.cs.v2.u64 {%0, %1}, [%2];" : "=l"(word.x), "=l"(word.y) : "l"(from));
  return word;
}

__attribute__((device)) inline void AddWord(Sum& sum, uint64_t counter, Word word) {
  const unsigned __int128 product = torpor::DigestWord(counter, word.x, word.y);
  Add(sum, static_cast<uint64_t>(product), static_cast<uint64_t>(product >> 64));
}

}  // namespace

// Digests `words` words that begin at `data`, the first one of which has the number `first`. Block
// i digests those of them that lie in the i-th part that they touch, and writes to[i]. Nothing is
// written if there are no words.
extern "C" __attribute__((global)) __attribute__((launch_bounds(kThreads, kBlocks))) void
TorporDigest(const Word* data, uint64_t first, uint64_t words, Word* to) {
  const unsigned thread = __nvvm_read_ptx_sreg_tid_x();
  const unsigned block = __nvvm_read_ptx_sreg_ctaid_x();
  const uint64_t part = (first / kPartWords + block) * kPartWords;
  const uint64_t begin = part < first ? first : part;
  const uint64_t end = part + kPartWords < first + words ? part + kPartWords : first + words;

  Sum sum = {0, 0};
  uint64_t word = begin + thread;
  const Word* from = data + (word - first);
  uint64_t counter = torpor::DigestCounter(word);
  for (; word + (kUnroll - 1) * kThreads < end; word += kUnroll * kThreads) {
    Word loaded[kUnroll];
#pragma unroll
    for (unsigned i = 0; i < kUnroll; ++i) loaded[i] = Load(from + i * kThreads);
#pragma unroll
    for (unsigned i = 0; i < kUnroll; ++i) {
      AddWord(sum, counter + i * kThreads * torpor::kDigestStep, loaded[i]);
    }
    from += kUnroll * kThreads;
    counter += kUnroll * kThreads * torpor::kDigestStep;
  }
#pragma unroll 1
  for (; word < end; word += kThreads) {
    AddWord(sum, counter, Load(from));
    from += kThreads;
    counter += kThreads * torpor::kDigestStep;
  }

  static __attribute__((shared)) Sum sums[kThreads];
  sums[thread] = sum;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) Add(sums[thread], sums[thread + half].low, sums[thread + half].high);
    __syncthreads();
  }
  if (thread == 0 && words > 0) to[block] = Word{sums[0].low, sums[0].high};
}
