#ifndef TORPOR_TESTS_CORE_CONCURRENT_MODEL_H_
#define TORPOR_TESTS_CORE_CONCURRENT_MODEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lib/base/mutex.h"
#include "tests/core/core_fixture.h"
#include "tests/core/model.h"

namespace torpor {

// Everything at once: owners allocate, write, free and reconnect, each its own worker; movers put
// whatever there is to sleep and wake it; others reserve, release, wait for much memory and read
// Usage. An owner touches
// memory inside the work guard, as an application does, and finds its bytes, or zeros where a sleep
// of level 1 drops them. Between rounds all comes to rest and is compared.
class ConcurrentModelFixture : public CoreFixture {
 protected:
  static constexpr Bytes kPage = KiB(64);
  static constexpr Bytes kDevice = MiB(12);
  static constexpr int kOwners = 4;
  static constexpr int kRounds = 4;

  // In each round every thread does `steps` things.
  void Run(uint64_t seed, int steps);

 private:
  struct Owner {
    std::string name;
    std::unique_ptr<TestWorker> real;
    std::vector<ModelSegment> segments;  // `state` is not used
    uint64_t last_seed = 0;
    Bytes allocated{};
  };
  using Random = std::mt19937_64;

  void OwnerStep(Owner& owner, Random& random);
  void MoverStep(Random& random);
  void ReserverStep(Random& random);
  void ReaderStep();
  void WaiterStep(Random& random);
  void Allocate(Owner& owner, Random& random);
  void Reconnect(Owner& owner, Random& random);
  // Inside the guard; false if the memory sleeps.
  bool WithMemory(const Owner& owner, const ModelSegment& segment,
                  const std::function<void()>& work);
  static void CheckBytes(ModelSegment& segment);
  // The error is one that the race explains.
  static void ExpectRefusal(const Status& status, const std::set<std::string>& reasons);

  void ComeToRest(std::vector<Owner>& owners);

  // A reservation that waits. Answered at the latest when all else sleeps.
  struct Wait {
    Mutex mutex;
    std::optional<Result<ReserveResult>> answer GUARDED_BY(mutex);
    std::optional<Result<ReserveResult>> Take();
  };

  int64_t base_fds_ = 0;
  std::shared_ptr<Wait> waiting_;  // of the waiter's thread, or between rounds
};

}  // namespace torpor

#endif  // TORPOR_TESTS_CORE_CONCURRENT_MODEL_H_
