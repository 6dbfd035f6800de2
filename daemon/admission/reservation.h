#ifndef TORPOR_DAEMON_ADMISSION_RESERVATION_H_
#define TORPOR_DAEMON_ADMISSION_RESERVATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// So that a daemon full of reservations can be shown in one message of 4 MiB, gRPC's limit unless
// its caller says otherwise.
constexpr size_t kMaxReservationParts = 32;
constexpr size_t kMaxReservations = 1024;  // live and waited for, together
// Nobody has that much.
constexpr Bytes kAbsurd{int64_t{1} << 50};

struct ReservationPart {
  std::string name;
  Bytes device{};
};

// What is asked for; granted as a whole or not at all.
struct ReservationSpec {
  std::string name;
  std::vector<ReservationPart> parts;
  Bytes host{};
  Duration ttl{};
  // What a sleep frees stays promised, so that the wake finds it.
  bool hold = false;
  // The reservation does not end with the session of its last holder.
  bool keep = false;
  std::string owner = {};  // Owner::name; empty: an operator's

  Bytes device() const;
};

// INVALID_ARGUMENT BAD_TTL
Status CheckTtl(Duration ttl);
// INVALID_ARGUMENT BAD_RESERVATION, BAD_TTL
Status CheckSpec(const ReservationSpec& spec);

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
  bool hold = false;
  bool keep = false;
  int64_t holders = 0;     // sessions that draw on it
  std::string owner = {};  // as in ReservationSpec
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

// Who waits in the queue, and for what.
struct WaiterStats {
  std::string id;      // "q-3"
  std::string name;    // of the reservation to be; of the worker that allocates
  std::string worker;  // id; empty: a reservation waits
  std::string owner;   // of the reservation to be, as in ReservationSpec
  std::vector<ReservationPart> parts;
  Bytes device{};
  Bytes host{};
  TimePoint since{};
  TimePoint deadline{};
};

// A worker with device memory, for refusals.
struct MemoryHolder {
  std::string id;
  std::string name;
  Bytes resident{};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_RESERVATION_H_
