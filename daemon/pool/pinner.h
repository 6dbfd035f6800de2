#ifndef TORPOR_DAEMON_POOL_PINNER_H_
#define TORPOR_DAEMON_POOL_PINNER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "daemon/operation/tasks.h"
#include "daemon/pool/pool_memory.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Pins the slabs of a pool, each by one registration, in a pipeline: several threads populate
// slabs, a few slabs ahead of one thread that registers them.
//
//   RESERVED ──► POPULATING ──► POPULATED ──► REGISTERING ──► PINNED
//      ▲              │                            │
//      └─── DROPPING ◄┴────────────────────────────┘   the system refused
//
// Slabs that are demanded come first, in the order of demand, with all threads and with a breath
// only after each registration: the driver makes everyone wait while it registers, and who copies
// to what is pinned has to get his copies queued. In the background the others follow in their
// order, with few threads and a longer pause. A slab that is refused in the
// background is tried again rarely; one that is demanded again, at once.
//
// Thread-safe. The threads are started when they are first needed, and end when all is pinned or
// the pinner ends. No lock is held over a call of the driver or of the system.
class Pinner {
 public:
  struct Options {
    int numa_node = -1;  // whose CPUs populate; -1: any
    int threads = 0;     // that populate; 0: as many as serve, at most 16
    Duration breath = std::chrono::microseconds(150);  // after each registration
    Duration pause = milliseconds(1);                  // after each one in the background
    Duration yield = milliseconds(3);                  // after each Yield
    Duration most_yield = milliseconds(100);           // between two of the background
    Duration retry = seconds(30);  // in the background after a refusal; doubles, to 10 minutes
    // What can still be taken from the system, asked before each slab; none: not asked. An error
    // stands for enough.
    std::function<Result<Bytes>()> available;
    Tasks::Starter start_thread = StartThread;
  };
  struct Stats {
    Bytes pinned{};
    Bytes demanded{};      // and not yet pinned
    bool pinning = false;  // something is being pinned, or will be without being asked
    Bytes refused{};       // slabs whose last try failed
    Status last_error;     // of the last try that failed; OK once everything that failed is pinned
  };
  // In which order slabs are best used.
  struct Order {
    uint64_t version = 0;
    std::vector<size_t> slabs;  // pinned ones, those to be pinned next, the others, refused ones
    size_t sound = 0;           // how many of them come before the refused ones
  };

  // `driver` and `memory` must outlive the pinner.
  Pinner(Driver& driver, const PoolMemory& memory, Options options);
  // Waits for calls under way, and unregisters all. Nobody may wait in Await.
  ~Pinner();
  Pinner(const Pinner&) = delete;
  Pinner& operator=(const Pinner&) = delete;

  // Asks for slabs ahead of all that are not demanded; does not block.
  void Demand(const std::vector<size_t>& slabs) EXCLUDES(mutex_);
  // Demands a slab and blocks until it is pinned. `interrupt`, which may be null, is called every
  // few milliseconds without any lock held; its error ends the wait.
  //   the error of `interrupt`; RESOURCE_EXHAUSTED HOST_MEMORY_EXHAUSTED, THREADS_EXHAUSTED; what
  //   RegisterHost says
  Status Await(size_t slab, const std::function<Status()>& interrupt) EXCLUDES(mutex_);
  bool IsPinned(size_t slab) const EXCLUDES(mutex_);
  // What lies in the slab is never given back to the system.
  void Keep(size_t slab) EXCLUDES(mutex_);
  // Pins everything, in the background, from now on.
  void StartBackground() EXCLUDES(mutex_);
  // Somebody uses the driver for a moment, and would wait for a registration: the background
  // begins none for a few milliseconds, but for so many that it goes on.
  void Yield() EXCLUDES(mutex_);

  Stats stats() const EXCLUDES(mutex_);
  // Brings `order` up to date.
  void Refresh(Order& order) const EXCLUDES(mutex_);

 private:
  enum class State : uint8_t {
    kReserved,
    kPopulating,
    kPopulated,
    kRegistering,
    kDropping,
    kPinned,
  };
  struct Slab {
    State state = State::kReserved;
    bool demanded = false;  // and not yet pinned
    bool checked = false;   // populating: whether the system has so much was asked
    Bytes next{};           // populating: where the next part begins
    int parts = 0;          // populating: parts, or the check, under way
    Status trouble;         // populating: of this try
    bool keep = false;      // never given back to the system
    int failures = 0;       // tries that failed
    Status error;           // of the last one; OK: none failed, or it is pinned
  };
  struct Part {
    size_t slab = 0;
    Bytes offset{};
    Bytes size{};  // 0: the check
  };

  Status StartThreads() REQUIRES(mutex_);
  void DemandLocked(size_t slab) REQUIRES(mutex_);
  // A refusal keeps the background from beginning anything.
  bool BackingOff() const REQUIRES(mutex_);
  bool Hurried() const REQUIRES(mutex_) { return demanded_ > 0; }
  // False if the pipeline is as far ahead as it may be, or nothing is left to pin.
  bool Admit() REQUIRES(mutex_);
  // A part for the populating thread number `thread`; false: nothing to do for it now.
  bool TakePart(int thread, Part& part) REQUIRES(mutex_);
  Status Populate(const Part& part) EXCLUDES(mutex_);
  void Populated(const Part& part, const Status& status) REQUIRES(mutex_);
  // The next slab to register; slabs_.size(): none now.
  size_t NextToRegister() const REQUIRES(mutex_);
  TimePoint MayRegister(size_t slab) const REQUIRES(mutex_);
  void Registered(size_t slab) REQUIRES(mutex_);
  // Gives the slab's memory back, for which it lets go of the lock, and tells those that wait.
  void Refuse(size_t slab, const Status& why) REQUIRES(mutex_);
  void Leave(size_t slab) REQUIRES(mutex_);
  bool AllPinned() const REQUIRES(mutex_) { return pinned_slabs_ == slabs_.size(); }
  void RunPopulator(int thread) EXCLUDES(mutex_);
  void RunRegistrar() EXCLUDES(mutex_);

  Driver& driver_;
  const PoolMemory& memory_;
  const Options options_;
  std::vector<int> cpus_;
  int threads_ = 1;  // that populate at full speed
  int background_threads_ = 1;

  mutable Mutex mutex_;
  CondVar to_populate_;
  CondVar to_register_;
  CondVar changed_;  // a slab was pinned or refused
  std::vector<Slab> slabs_ GUARDED_BY(mutex_);
  std::deque<size_t> queue_ GUARDED_BY(mutex_);     // demanded and still reserved
  std::deque<size_t> pipeline_ GUARDED_BY(mutex_);  // from being populated to being registered
  size_t demanded_ GUARDED_BY(mutex_) = 0;          // slabs that are
  size_t pinned_slabs_ GUARDED_BY(mutex_) = 0;
  Bytes pinned_ GUARDED_BY(mutex_){};
  uint64_t version_ GUARDED_BY(mutex_) = 1;  // of the order
  bool background_ GUARDED_BY(mutex_) = false;
  TimePoint breathe_until_ GUARDED_BY(mutex_);  // nothing is registered before
  TimePoint rest_until_ GUARDED_BY(mutex_);     // nor in the background
  TimePoint yield_until_ GUARDED_BY(mutex_);    // nor that, but for most_yield
  TimePoint registered_at_ GUARDED_BY(mutex_);  // when the last one was, or the background began
  TimePoint retry_at_ GUARDED_BY(mutex_);       // nothing is begun in the background before
  Duration retry_after_ GUARDED_BY(mutex_);     // how long, at the next refusal
  bool logged_ GUARDED_BY(mutex_) = false;      // that the system refuses
  Status last_error_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> running_ GUARDED_BY(mutex_);
  bool populators_ GUARDED_BY(mutex_) = false;  // false: the registering thread populates, too
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_POOL_PINNER_H_
