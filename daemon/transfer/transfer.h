#ifndef TORPOR_DAEMON_TRANSFER_TRANSFER_H_
#define TORPOR_DAEMON_TRANSFER_TRANSFER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "daemon/memory/range_set.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/digest.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Device and host ends of one copy.
struct CopyStep {
  DeviceAddress device;
  std::byte* host = nullptr;
  Bytes size{};
};

// The most that one step copies: measured best from 64 MiB on, and small enough to be interrupted.
constexpr Bytes kMaxCopyStep = MiB(64);

// Where steps come from, one after the other: each can be prepared while those before it are
// copied.
class StepSource {
 public:
  enum class Next { kStep, kEnd, kNotReady };
  virtual ~StepSource() = default;
  // Fills `step`. kNotReady, if `may_block` is false, instead of waiting for something: the engine
  // calls again once nothing of this source is in flight. A step must not cross the border of two
  // registrations of host memory.
  virtual Result<Next> NextStep(bool may_block, CopyStep& step) = 0;
};

// Moves bytes between device and host memory, clears and digests: a stream for each. Copies of one
// direction share the link step by step: of operations that have a step ready the one of higher
// priority goes first, of equal ones the older. Thread-safe; `driver` must outlive it, and it its
// runs.
class TransferEngine {
 public:
  static Result<std::unique_ptr<TransferEngine>> Create(Driver& driver);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // Says when to stop and why; OK: go on. Called before each step, and while it waits for its turn.
  using Interrupt = std::function<Status()>;
  // Called after each step that arrived, with its size.
  using Arrived = std::function<void(Bytes)>;

  // Block until every step has arrived, or one failed, or `source` or `interrupt` said so. On
  // return nothing of the steps is in flight; after an error the target of any step may hold a part
  // of its bytes.
  Status ToHost(StepSource& source, int32_t priority, const Interrupt& interrupt,
                const Arrived& arrived = nullptr);
  Status ToDevice(StepSource& source, int32_t priority, const Interrupt& interrupt,
                  const Arrived& arrived = nullptr);

 private:
  friend class DigestRun;
  friend class ClearRun;
  // What copies in one direction.
  struct Direction {
    StreamId stream;
    bool to_host = false;
    Mutex mutex;
    CondVar changed;
    // Operations with a step ready: by priority, the highest first, then by age.
    std::set<std::pair<int64_t, uint64_t>> ready GUARDED_BY(mutex);
    // Somebody queues a step and its event, so that the event marks that step.
    bool queuing GUARDED_BY(mutex) = false;
    int steps_in_flight GUARDED_BY(mutex) = 0;
    Bytes bytes_in_flight GUARDED_BY(mutex){};
    uint64_t operations GUARDED_BY(mutex) = 0;
  };
  class Run;

  explicit TransferEngine(Driver& driver) : driver_(driver) {}
  Status Start();

  Driver& driver_;
  Direction to_host_;
  Direction to_device_;
  StreamId clear_stream_;
  StreamId digest_stream_;
  // Registered memory that digests arrive in; null if there is none.
  PartDigest* digests_ = nullptr;
  Mutex digests_mutex_;
  RangeSet free_digests_ GUARDED_BY(digests_mutex_);
};

// Clears device memory, beside the copies. Not thread-safe.
class ClearRun {
 public:
  explicit ClearRun(TransferEngine& engine) : engine_(engine) {}
  // Waits.
  ~ClearRun() { (void)Finish(); }
  ClearRun(const ClearRun&) = delete;
  ClearRun& operator=(const ClearRun&) = delete;

  Status Add(DeviceAddress address, Bytes size);
  // Waits for all that was added.
  Status Finish();

 private:
  TransferEngine& engine_;
  bool running_ = false;
};

// Digests device memory, beside the copies. Not thread-safe.
class DigestRun {
 public:
  explicit DigestRun(TransferEngine& engine) : engine_(engine) {}
  // Waits.
  ~DigestRun();
  DigestRun(const DigestRun&) = delete;
  DigestRun& operator=(const DigestRun&) = delete;

  // As Driver::Digest. RESOURCE_EXHAUSTED DIGEST_BUFFER_FULL: too much under way at once.
  Status Add(DeviceAddress address, Bytes size, Bytes position);
  // Waits for all that was added, and gives its parts in order: each with the position of its first
  // byte.
  Status Finish(const std::function<void(Bytes position, const PartDigest& digest)>& part);

 private:
  struct Added {
    Bytes position{};
    Bytes place{};  // in the engine's buffer
    int64_t parts = 0;
  };
  Status Settle();

  TransferEngine& engine_;
  std::vector<Added> added_;
  bool running_ = false;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_TRANSFER_TRANSFER_H_
