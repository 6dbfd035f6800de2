#ifndef TORPOR_TESTS_CORE_MODEL_H_
#define TORPOR_TESTS_CORE_MODEL_H_

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

namespace torpor {

// What the property test knows of a segment without asking the daemon.
struct ModelSegment {
  TestWorker::Segment memory;
  SegmentState state = SegmentState::kResident;
  bool zero = false;  // its bytes are zero; otherwise the pattern of its seed
};

struct ModelWorker {
  std::string name;
  std::string reservation;
  std::vector<ModelSegment> segments;
  std::unique_ptr<TestWorker> real;
};

struct ModelReservation {
  Bytes device{};
  Bytes host{};
  TimePoint expires{};
  bool keep = false;
  int holders = 0;
  bool over = false;  // released, or left by its last holder
};

// Random operations on a daemon, one after the other, and a model of it in plain memory: each
// operation's outcome is predicted from the model and from the figures of Usage before it, and
// Check compares everything that can be seen. With faults, an operation during which a driver call
// was made to fail may fail, too; then it must have changed nothing.
class ModelFixture : public CoreFixture {
 protected:
  static constexpr Bytes kPage = KiB(64);
  static constexpr Bytes kDevice = MiB(8);
  static constexpr Bytes kHostPool = MiB(5);
  static constexpr Bytes kSafetyReserve = KiB(256);
  static constexpr int kWorkers = 5;

  void StartModel(uint64_t seed, bool faults);
  // A random operation, and Check.
  void Step();
  // Everything ends; nothing is left.
  void Finish();

 private:
  // --- operations
  void Allocate();
  void Write();
  void Free();
  void Sleep();
  void Wake();
  void Reserve();
  void Renew();
  void Release();
  void Wait();
  void StopWaiting();
  void Reconnect();
  void Expire();

  struct ModelWaiter {
    struct Answer {
      Mutex mutex;
      std::optional<Result<ReserveResult>> result GUARDED_BY(mutex);
    };
    uint64_t ticket = 0;
    ReservationSpec spec;
    TimePoint deadline;
    std::shared_ptr<Answer> answer;
    bool cancelled = false;
    std::optional<Result<ReserveResult>> Answered() const;
  };
  ReservationSpec RandomSpec();
  void Made(const ReservationSpec& spec, const ReserveResult& made);
  void ReleaseAll();
  // Waits until everybody in the queue has been served who can be.
  void SettleWaiters();
  void TakeAnswers();
  bool NobodyCanBeServed() const;
  static bool Fits(const ReservationSpec& spec, Bytes device, Bytes host);
  bool FitsBehindAll(const ReservationSpec& spec) const;
  Bytes FirstAwaited() const;

  void Disconnect(ModelWorker& worker);
  void Connect(ModelWorker& worker);
  // Runs `operation`, maybe with a fault in the daemon or in `worker`, and waits until nobody is
  // under an operation. True if a fault happened.
  bool WithFault(const ModelWorker& worker, const std::function<void()>& operation);

  struct SleepPlan {
    int32_t level = 0;
    std::map<std::string, wire::Policy> policies;
    bool force = false;
    wire::Policy Of(const std::string& tag) const;
  };
  SleepPlan RandomSleepPlan();
  // The worker's segments under `tags` (none: all) that the plan moves.
  static Bytes NeedsHost(const ModelWorker& worker, const SleepPlan& plan,
                         const std::set<std::string>& tags);
  static void ApplySleep(ModelWorker& worker, const SleepPlan& plan,
                         const std::set<std::string>& tags);
  static Bytes NeedsDevice(const ModelWorker& worker, const std::set<std::string>& tags);
  static void ApplyWake(ModelWorker& worker, const std::set<std::string>& tags);
  // Who was selected, and whether each went through; `apply` for those.
  void Settle(const Result<std::vector<WorkerOutcome>>& result,
              const std::vector<ModelWorker*>& selected, bool must_work, bool may_work,
              const std::set<std::string>& reasons, bool faulted,
              const std::function<void(ModelWorker&)>& apply);

  // --- what Usage said before the operation
  const ReservationStats* Listed(const std::string& id) const;
  Bytes LeftDevice(const std::string& id) const;
  Bytes LeftHost(const std::string& id) const;
  Bytes HostAvailable() const {
    return before_.pool.budget - before_.pool.used - before_.pool_promised;
  }
  bool Live(const std::string& id) const;
  std::string AnyReservation();

  // --- comparison
  void Check();
  void CheckWorker(const ModelWorker& worker, const WorkerStats& stats);
  void CheckReservations(const UsageReport& usage);
  void CheckDescriptors(const UsageReport& usage);

  ModelWorker& AnyWorker() { return workers_[Random(kWorkers)]; }
  std::set<std::string> AnyTags();
  size_t Random(size_t below) { return random_() % below; }
  bool OneIn(size_t n) { return Random(n) == 0; }

  std::mt19937_64 random_;
  bool faults_ = false;
  std::string fault_;  // of the operation under way, in words
  uint64_t last_seed_ = 0;
  std::vector<ModelWorker> workers_;
  std::map<std::string, ModelReservation> reservations_;
  std::vector<ModelWaiter> waiters_;  // in their order
  UsageReport before_;
  // Open descriptors of this process: without workers, and more for each of them.
  int64_t base_fds_ = 0;
  int64_t worker_fds_ = 0;
};

// Waits for descriptors that are being closed; false if they do not become `expected`, or up to
// `more`.
bool DescriptorsBecome(int64_t expected, int64_t more = 0);

}  // namespace torpor

#endif  // TORPOR_TESTS_CORE_MODEL_H_
