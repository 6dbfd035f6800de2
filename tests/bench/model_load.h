#ifndef TORPOR_TESTS_BENCH_MODEL_LOAD_H_
#define TORPOR_TESTS_BENCH_MODEL_LOAD_H_

#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor::bench {

// What a worker allocates: weights, which a sleep of level 1 keeps, and a KV cache, which it drops.
struct ModelLoad {
  std::string name;
  std::vector<Bytes> weights;   // segments, in the order of their allocation
  std::vector<Bytes> kv_cache;  // 8 GiB in segments of 256 MiB

  Bytes weight_bytes() const;
  Bytes kv_cache_bytes() const;
};

//   seed  125 segments, 4.83 GiB: how PyTorch allocates a model of 2 billion parameters
//   b14   194 segments, 27.5 GiB: a model of 14 billion parameters in bf16
//   b32   258 segments, 64.8 GiB: one of 32 billion
//   tiny  5,000 segments of 2 MiB
// `scale` divides sizes, or, for tiny, the number of segments; nothing gets smaller than 64 KiB or
// fewer than one. INVALID_ARGUMENT BAD_LOAD.
Result<ModelLoad> MakeModelLoad(const std::string& name, int64_t scale);

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_MODEL_LOAD_H_
