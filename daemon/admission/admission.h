#ifndef TORPOR_DAEMON_ADMISSION_ADMISSION_H_
#define TORPOR_DAEMON_ADMISSION_ADMISSION_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/memory/device_memory.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

class Admission;

// Bytes that were granted to one extent or image; given back when destroyed. Move-only; not
// thread-safe. The Admission must outlive it.
class Draw {
 public:
  Draw() = default;
  Draw(Draw&& other) noexcept { *this = std::move(other); }
  Draw& operator=(Draw&& other) noexcept;
  ~Draw() { Return(); }

  Bytes size() const { return size_; }
  // A draw of its own for `size` of these bytes.
  Draw Split(Bytes size);
  // The DeviceMemory created the bytes; its measurements count them from there on.
  void MarkCreated() { created_ = true; }
  // The promise of the reservation goes with the bytes: they return to the free budget, not to it.
  void Surrender() { surrendered_ = true; }
  void Return();

 private:
  friend class Admission;
  Admission* admission_ = nullptr;
  bool host_ = false;
  Bytes size_{};
  Bytes promised_{};  // as much of it came out of the reservation
  std::string reservation_;
  bool created_ = false;
  bool surrendered_ = false;
};

struct ReservationPart {
  std::string name;
  Bytes device{};
};

struct ReservationStats {
  std::string id;
  std::string name;
  std::vector<ReservationPart> parts;
  Bytes device{};
  Bytes drawn_device{};
  Bytes surrendered_device{};  // drawn once, and gone with a sleep
  Bytes host{};
  Bytes drawn_host{};
  TimePoint expires{};
};

// The arithmetic of a grant or refusal.
struct BudgetStats {
  Bytes total{};
  Bytes free{};
  Bytes resident{};
  Bytes context{};
  Bytes other{};
  Bytes promised{};
  Bytes safety_reserve{};
  // Granted and not yet created, or released and not yet given back.
  Bytes pending{};
  Bytes available{};
  Bytes overcommitted{};
};

struct ReserveResult {
  std::string id;
  TimePoint expires{};
  BudgetStats budget;
};

// Decides who may have device memory and room in the host pool. A reservation is a promise: its
// bytes are kept from everyone who does not present it, until they are drawn, it expires or is
// released. Memory of a freed extent returns to the promise it came from; memory of a sleeping one
// goes to the free budget.
//
// Whoever creates device memory holds a draw for it from before the creation until after the
// release. So a measurement, which is older than the books by the time it is used, can be set right
// by its own sums of what was created and released: nothing is granted twice.
//
// Thread-safe. The measurement runs without any lock of this class.
class Admission {
 public:
  struct Options {
    Bytes safety_reserve{};
    Bytes host_budget{};
    bool require_reservation = false;
  };
  using Measure = std::function<Result<DeviceMemory::Measurement>()>;

  Admission(Options options, Measure measure, const Clock& clock)
      : options_(options), measure_(std::move(measure)), clock_(clock) {}

  // At once, all or none.
  //   RESOURCE_EXHAUSTED DEVICE_BUDGET_EXHAUSTED with the arithmetic; RESERVATION_TOO_SMALL
  //   NOT_FOUND UNKNOWN_RESERVATION; FAILED_PRECONDITION RESERVATION_EXPIRED, RESERVATION_RELEASED,
  //   RESERVATION_REQUIRED
  Result<Draw> DrawDevice(Bytes size, const std::string& reservation) EXCLUDES(mutex_);
  // What the reservation has not promised comes from the free pool. A reservation that is over
  // promises nothing. RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED.
  Result<Draw> DrawHost(Bytes size, const std::string& reservation) EXCLUDES(mutex_);

  // INVALID_ARGUMENT BAD_RESERVATION, BAD_TTL; RESOURCE_EXHAUSTED DEVICE_BUDGET_EXHAUSTED,
  // HOST_POOL_EXHAUSTED.
  Result<ReserveResult> Reserve(const std::string& name, std::vector<ReservationPart> parts,
                                Bytes host, Duration ttl) EXCLUDES(mutex_);
  // Gives the promises that came free.
  struct Released {
    Bytes device{};
    Bytes host{};
  };
  Result<Released> Release(const std::string& id) EXCLUDES(mutex_);
  // OK while `id` can be drawn on.
  Status Check(const std::string& id) EXCLUDES(mutex_);

  Result<BudgetStats> Budget() EXCLUDES(mutex_);
  std::vector<ReservationStats> Reservations() const EXCLUDES(mutex_);
  Bytes promised_host() const EXCLUDES(mutex_);

 private:
  friend class Draw;
  struct Reservation {
    ReservationStats stats;
    bool released = false;
    Bytes LeftDevice(TimePoint now) const;
    Bytes LeftHost(TimePoint now) const;
    bool Over(TimePoint now) const { return released || stats.expires <= now; }
  };

  void ReturnDraw(Draw& draw) EXCLUDES(mutex_);
  // Never more than there is, whatever was created, released, drawn or returned since the
  // measurement.
  BudgetStats Arithmetic(const DeviceMemory::Measurement& measurement) const REQUIRES(mutex_);
  // Runs `grant` under the lock if `size` fits. A refusal rests on a measurement after which nothing
  // was returned, or on the last of a few.
  Status Admit(Bytes size, const std::function<void(const BudgetStats&)>& grant) EXCLUDES(mutex_);
  Status Refusal(Bytes size, const BudgetStats& budget) const REQUIRES(mutex_);
  Result<Reservation*> FindLive(const std::string& id) REQUIRES(mutex_);
  Bytes PromisedDevice() const REQUIRES(mutex_);
  Bytes PromisedHost() const REQUIRES(mutex_);
  void ForgetOld() REQUIRES(mutex_);

  const Options options_;
  const Measure measure_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<std::string, Reservation> reservations_ GUARDED_BY(mutex_);
  uint64_t next_reservation_ GUARDED_BY(mutex_) = 1;
  // Running sums of device draws, which match the measurement's sums of what was created and
  // released.
  Bytes granted_ GUARDED_BY(mutex_){};
  Bytes unused_ GUARDED_BY(mutex_){};    // given back without creation
  Bytes returned_ GUARDED_BY(mutex_){};  // given back after it
  Bytes used_host_ GUARDED_BY(mutex_){};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_ADMISSION_H_
