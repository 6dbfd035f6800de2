#ifndef TORPOR_DAEMON_SERVICE_CONVERSIONS_H_
#define TORPOR_DAEMON_SERVICE_CONVERSIONS_H_

#include <chrono>
#include <string>
#include <vector>

#include "daemon/access/owner.h"
#include "daemon/admission/admission.h"
#include "daemon/core/core.h"
#include "daemon/operation/operation.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor {

// Between the control plane's messages and Core. What only the wire can get wrong is refused here;
// everything else is Core's to judge.

// The same moment on two clocks, to turn what one says into the other.
struct Now {
  TimePoint steady;
  std::chrono::system_clock::time_point wall;
};

// INVALID_ARGUMENT BAD_POLICY for POLICY_UNSPECIFIED and for numbers this version does not know.
Result<SleepCommand> ToSleepCommand(const v1::SleepRequest& request, TimePoint deadline);
WakeCommand ToWakeCommand(const v1::WakeUpRequest& request, TimePoint deadline);

// INVALID_ARGUMENT BAD_SIZE (negative, or 2^50 bytes and more), BAD_TTL (none, or not a Duration by
// the rules of google/protobuf/duration.proto).
Result<ReservationSpec> ToReservationSpec(const v1::ReserveRequest& request);
// INVALID_ARGUMENT BAD_TTL, likewise.
Result<Duration> ToTtl(bool given, const google::protobuf::Duration& ttl);
void FromSystemTime(std::chrono::system_clock::time_point time, google::protobuf::Timestamp& proto);
void FromTimePoint(TimePoint time, const Now& now, google::protobuf::Timestamp& proto);

void FromOutcomes(const std::vector<WorkerOutcome>& outcomes, v1::SleepResponse& response);
void FromOutcomes(const std::vector<WorkerOutcome>& outcomes, v1::WakeUpResponse& response);
void FromReport(const UsageReport& report, const Now& now, v1::UsageResponse& response);
// Of workers, reservations and those that wait, leaves what is the owner's. `response`:
// FromReport's.
void KeepOwn(const Owner& owner, const UsageReport& report, v1::UsageResponse& response);
// `requested`: the device bytes that were asked for.
void FromReserveResult(const ReserveResult& result, Bytes requested, const Now& now,
                       v1::ReserveResponse& response);

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_CONVERSIONS_H_
