#ifndef TORPOR_DAEMON_ADMISSION_ADMISSION_H_
#define TORPOR_DAEMON_ADMISSION_ADMISSION_H_

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/admission/announcer.h"
#include "daemon/admission/draw.h"
#include "daemon/admission/refusal.h"
#include "daemon/admission/reservation.h"
#include "daemon/admission/wait_queue.h"
#include "daemon/memory/device_memory.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// Decides who may have device memory and room in the host pool. A reservation is a promise: its
// bytes are kept from everyone who does not present it, until they are drawn, it expires or ends.
// Memory of a freed extent returns to the promise it came from; memory of a sleeping one goes to
// the free budget, unless the reservation holds it.
//
// Whoever creates device memory holds a draw for it from before the creation until after the
// release. So a measurement, which is older than the books by the time it is used, can be set right
// by its own sums of what was created and released: nothing is granted twice.
//
// The queue: those that wait have nothing, and get everything they asked for at once, in the order
// in which they came. Nobody takes what those before him in the queue need; a reservation that does
// not wait comes after all of them. Allocations and wakes that do not wait pass the queue, but
// leave what the first waiter needs once it has been the first for `patience`. What is drawn from a
// reservation, and host memory for a sleep, is not affected.
//
// Thread-safe. Measurements, callbacks and answers run without any lock of this class.
class Admission {
 public:
  static constexpr size_t kMaxWaiters = 1024;
  static constexpr size_t kMaxWaitersOfWorker = 64;
  // Ends of reservations are remembered for ten minutes, but not more of them.
  static constexpr size_t kMaxPast = 100'000;

  struct Options {
    Bytes safety_reserve{};
    Bytes host_budget{};
    bool require_reservation = false;
    Duration patience = seconds(2);
    EventLog* events = nullptr;  // hears of reservations, the queue and pressure
  };
  using Accuracy = DeviceMemory::Accuracy;
  using Measure = std::function<Result<DeviceMemory::Measurement>(Accuracy)>;
  using Holders = std::function<std::vector<MemoryHolder>()>;

  // `holders`: workers with device memory, for refusals.
  Admission(Options options, Measure measure, const Clock& clock, Holders holders = nullptr)
      : options_(options),
        measure_(std::move(measure)),
        clock_(clock),
        holders_(std::move(holders)),
        announcer_(options.events) {}

  // At once, all or none.
  //   RESOURCE_EXHAUSTED DEVICE_BUDGET_EXHAUSTED and NEVER_FITS with the arithmetic,
  //   RESERVATION_TOO_SMALL
  //   NOT_FOUND UNKNOWN_RESERVATION; FAILED_PRECONDITION RESERVATION_EXPIRED, RESERVATION_RELEASED,
  //   RESERVATION_ENDED, RESERVATION_REQUIRED
  Result<Draw> DrawDevice(Bytes size, const std::string& reservation) EXCLUDES(mutex_);
  // What the reservation has not promised comes from the free pool. A reservation that is over
  // promises nothing. RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED.
  Result<Draw> DrawHost(Bytes size, const std::string& reservation) EXCLUDES(mutex_);

  // INVALID_ARGUMENT BAD_RESERVATION, BAD_TTL; RESOURCE_EXHAUSTED NEVER_FITS,
  // DEVICE_BUDGET_EXHAUSTED, HOST_POOL_EXHAUSTED, TOO_MANY_RESERVATIONS.
  Result<ReserveResult> Reserve(const ReservationSpec& spec) EXCLUDES(mutex_);
  // Counts the time from now on. Errors of Check, and BAD_TTL.
  Result<TimePoint> Renew(const std::string& id, Duration ttl) EXCLUDES(mutex_);
  // Gives the promises that came free. Errors of Check.
  struct Released {
    Bytes device{};
    Bytes host{};
  };
  Result<Released> Release(const std::string& id) EXCLUDES(mutex_);
  // What the reservation has lost with sleeps; 0 if it is over.
  Bytes Surrendered(const std::string& id) const EXCLUDES(mutex_);
  // Those that have expired since the last call.
  std::vector<std::string> TakeExpired() EXCLUDES(mutex_);

  // --- After a restart: what a daemon before this one has granted counts again, whatever there is.
  // A reservation of which `surrendered` bytes are gone with a sleep; none if it is over.
  void RestoreReservation(const ReservationStats& stats, Bytes surrendered) EXCLUDES(mutex_);
  void SkipReservations(uint64_t last) EXCLUDES(mutex_);
  Draw RestoreDevice(Bytes size, const std::string& reservation) EXCLUDES(mutex_);
  // RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED: the pool is smaller now.
  Result<Draw> RestoreHost(Bytes size, const std::string& reservation) EXCLUDES(mutex_);

  // OK while `id` can be drawn on.
  Status Check(const std::string& id) EXCLUDES(mutex_);
  // ReservationSpec::owner, for as long as its end is remembered; none: there is no reservation.
  std::optional<std::string> OwnerOf(const std::string& id) const EXCLUDES(mutex_);
  // A session draws on it from now on. Errors of Check.
  Status AddHolder(const std::string& id) EXCLUDES(mutex_);
  // The session has ended. True if the reservation ended with it.
  bool RemoveHolder(const std::string& id) EXCLUDES(mutex_);

  // --- Waiting. `ticket` is the caller's name for its wait, a new one each time, and its place in
  // the queue; a wait that goes on where an earlier one has ended gives that one's as its `place`.

  uint64_t NewTicket() EXCLUDES(mutex_);
  // As Reserve, but in the queue from the start on: measures nothing, and waits for what is short
  // until `deadline`. Calls `done` once, now or later, on any thread.
  //   DEADLINE_EXCEEDED RESERVATION_DEADLINE with the arithmetic; RESOURCE_EXHAUSTED QUEUE_FULL;
  //   what ends the wait from outside
  void ReserveAsync(uint64_t ticket, const ReservationSpec& spec, TimePoint deadline,
                    const std::function<void(Result<ReserveResult>)>& done,
                    std::optional<uint64_t> place = std::nullopt) EXCLUDES(mutex_);
  // A draw on the free budget for the worker `id`, called `name`. Always waits for its turn: to be
  // called after DrawDevice has refused.
  //   DEADLINE_EXCEEDED ALLOCATION_DEADLINE; otherwise as ReserveAsync
  struct Allocator {
    std::string id;
    std::string name;
    // Of a wait that goes on.
    std::optional<uint64_t> place;
    TimePoint since{};
  };
  void DrawDeviceAsync(uint64_t ticket, Bytes size, const Allocator& worker, TimePoint deadline,
                       const std::function<void(Result<Draw>)>& done) EXCLUDES(mutex_);
  // End waits with `why`, before they return. Tickets that do not wait (any more) are passed over.
  void CancelWait(uint64_t ticket, const Status& why) EXCLUDES(mutex_);
  void CancelWaitsOf(const std::string& worker, const Status& why) EXCLUDES(mutex_);
  // Ends all, and refuses new ones.
  void StopWaiting(const Status& why) EXCLUDES(mutex_);

  // Serves the queue until StopWaiting: whenever something returned, and every now and then while
  // someone waits, since memory also comes free without anyone saying so. To be run by one thread.
  void ServeQueue() EXCLUDES(mutex_);
  // One round of it.
  void ServeOnce() EXCLUDES(mutex_);

  Result<BudgetStats> Budget() EXCLUDES(mutex_);
  std::vector<ReservationStats> Reservations() const EXCLUDES(mutex_);
  std::vector<WaiterStats> Queue() const EXCLUDES(mutex_);
  Bytes promised_host() const EXCLUDES(mutex_);

 private:
  friend class Draw;
  enum class End : uint8_t { kNone, kReleased, kUnheld };
  struct Reservation {
    ReservationStats stats;
    End end = End::kNone;
    bool expiry_told = false;
    Bytes LeftDevice(TimePoint now) const;
    Bytes LeftHost(TimePoint now) const;
    bool Over(TimePoint now) const { return end != End::kNone || stats.expires <= now; }
  };
  struct Need {
    Bytes device{};
    Bytes host{};
  };
  // What can be had, before anything is kept for others.
  struct Funds {
    BudgetStats budget;
    Bytes host_promised{};
  };
  // What a round of the queue decides on a waiter that leaves it.
  struct Verdict {
    std::optional<BudgetStats> granted;
    Status failed;  // the measurement
    Shortage shortage;
    bool late = false;
    size_t waiting = 0;  // that the event log knows of, after it
  };
  // All that is told about the end of a reservation.
  struct Past {
    End end = End::kNone;
    TimePoint ended{};
    std::string owner;
  };
  enum class Place : uint8_t { kAfterAll, kPassing };

  void ReturnDraw(Draw& draw) EXCLUDES(mutex_);
  // Never more than there is, whatever was created, released, drawn or returned since the
  // measurement.
  BudgetStats Arithmetic(const DeviceMemory::Measurement& measurement) const REQUIRES(mutex_);
  Funds Count(const DeviceMemory::Measurement& measurement) const REQUIRES(mutex_);
  // What `need` meets when `kept` of what is available belongs to others; promises are not named
  // yet.
  Shortage Compare(const Need& need, const Need& kept, const Funds& funds) const REQUIRES(mutex_);
  LargestHolders LargestPromises() const REQUIRES(mutex_);
  // Runs `grant` under the lock if `need` fits, and gives what that gives. A refusal rests on a
  // settled measurement after which nothing was returned, or on the last of a few.
  Status Admit(const Need& need, Place place,
               const std::function<Status(const BudgetStats&)>& grant) EXCLUDES(mutex_);
  std::vector<MemoryHolder> Workers() const;
  // RESOURCE_EXHAUSTED TOO_MANY_RESERVATIONS
  Status CheckCount() const REQUIRES(mutex_);
  // Puts `waiter` into the queue, or says why not.
  Status Enqueue(Waiter& waiter) EXCLUDES(mutex_);
  // Whether `waiter` leaves the queue, and how. Its needs are taken from `funds` with a grant, and
  // kept for it otherwise.
  bool Judge(Waiter& waiter, const Result<DeviceMemory::Measurement>& measurement, TimePoint now,
             Funds& funds, Need& kept, Verdict& verdict) REQUIRES(mutex_);
  std::function<void()> Grant(Waiter& waiter, const BudgetStats& budget) REQUIRES(mutex_);
  void EndWaits(const std::function<bool(const Waiter&)>& which, const Status& why)
      EXCLUDES(mutex_);
  ReserveResult Make(const ReservationSpec& spec, const BudgetStats& budget) REQUIRES(mutex_);
  Draw MakeDraw(Bytes size) REQUIRES(mutex_);
  Result<Reservation*> FindLive(const std::string& id) REQUIRES(mutex_);
  static Status IsOver(const std::string& id, End end, Bytes drawn);
  Bytes PromisedDevice() const REQUIRES(mutex_);
  Bytes PromisedHost() const REQUIRES(mutex_);
  using ReservationMap = std::map<std::string, Reservation>;
  // Moves a reservation that is over, of which nothing is drawn and on which no session draws, to
  // those of the past. The one that follows it.
  ReservationMap::iterator SetAside(ReservationMap::iterator it) REQUIRES(mutex_);
  void ForgetOld() REQUIRES(mutex_);
  // Tells of reservations that have expired; gives when the next one will.
  std::optional<TimePoint> TellExpired() REQUIRES(mutex_);
  void Changed() REQUIRES(mutex_);

  const Options options_;
  const Measure measure_;
  const Clock& clock_;
  const Holders holders_;
  mutable Mutex mutex_;
  mutable Announcer announcer_ GUARDED_BY(mutex_);
  // The sums of promises go over all of these, so there are no others among them than those that
  // promise something, are drawn on or have holders.
  ReservationMap reservations_ GUARDED_BY(mutex_);
  std::map<std::string, Past> past_ GUARDED_BY(mutex_);
  std::vector<std::string> expired_ GUARDED_BY(mutex_);  // TakeExpired
  std::deque<std::string> past_order_ GUARDED_BY(mutex_);
  uint64_t next_reservation_ GUARDED_BY(mutex_) = 1;
  // Running sums of device draws, which match the measurement's sums of what was created and
  // released.
  Bytes granted_ GUARDED_BY(mutex_){};
  Bytes unused_ GUARDED_BY(mutex_){};    // given back without creation
  Bytes returned_ GUARDED_BY(mutex_){};  // given back after it
  Bytes used_host_ GUARDED_BY(mutex_){};

  WaitQueue queue_ GUARDED_BY(mutex_);
  size_t told_ GUARDED_BY(mutex_) = 0;  // of these, known to the event log
  uint64_t next_ticket_ GUARDED_BY(mutex_) = 1;
  CondVar wake_server_;
  bool changed_ GUARDED_BY(mutex_) = false;  // since the last round
  Status stopped_ GUARDED_BY(mutex_);        // not OK: nobody waits any more, and why
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_ADMISSION_H_
