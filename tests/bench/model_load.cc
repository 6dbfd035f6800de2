#include "tests/bench/model_load.h"

#include <algorithm>
#include <numeric>

namespace torpor::bench {
namespace {

constexpr Bytes kLeast = KiB(64);

Bytes Sum(const std::vector<Bytes>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Bytes(0));
}

// `times` times the sizes `mib`.
void Append(std::vector<Bytes>& to, int64_t times, const std::vector<int64_t>& mib) {
  for (int64_t i = 0; i < times; ++i) {
    for (const int64_t size : mib) to.push_back(MiB(size));
  }
}

}  // namespace

Bytes ModelLoad::weight_bytes() const { return Sum(weights); }
Bytes ModelLoad::kv_cache_bytes() const { return Sum(kv_cache); }

Result<ModelLoad> MakeModelLoad(const std::string& name, int64_t scale) {
  ModelLoad load;
  load.name = name;
  if (name == "seed") {
    Append(load.weights, 1, {970, 256, 128, 128, 128});
    Append(load.weights, 5, {48});
    Append(load.weights, 110, {28});
    Append(load.weights, 5, {4});
  } else if (name == "b14") {
    Append(load.weights, 2, {1484});
    Append(load.weights, 48, {70, 50, 270, 135});
  } else if (name == "b32") {
    Append(load.weights, 2, {1484});
    Append(load.weights, 64, {100, 80, 540, 270});
  } else if (name == "tiny") {
    Append(load.weights, std::max<int64_t>(5000 / scale, 1), {2});
  } else {
    return InvalidArgument("BAD_LOAD", "no such load: " + name);
  }
  Append(load.kv_cache, 32, {256});
  const auto shrink = [scale](Bytes& size) {
    size = std::max(RoundUp(Bytes(size.value() / scale), kLeast), kLeast);
  };
  if (name != "tiny") std::for_each(load.weights.begin(), load.weights.end(), shrink);
  std::for_each(load.kv_cache.begin(), load.kv_cache.end(), shrink);
  return load;
}

}  // namespace torpor::bench
