#include "daemon/admission/reservation.h"

#include <string>

namespace torpor {
namespace {

constexpr Duration kMaxTtl = std::chrono::hours(24 * 30);

}  // namespace

Bytes ReservationSpec::device() const {
  Bytes sum{};
  for (const ReservationPart& part : parts) sum += part.device;
  return sum;
}

Status CheckTtl(Duration ttl) {
  if (ttl >= milliseconds(1) && ttl <= kMaxTtl) return Status::Ok();
  return InvalidArgument("BAD_TTL", "a reservation lives between 1 ms and 30 days")
      .With("ttl_ms", std::chrono::duration_cast<milliseconds>(ttl).count());
}

Status CheckSpec(const ReservationSpec& spec) {
  TORPOR_RETURN_IF_ERROR(CheckName(spec.name, "reservation name", "BAD_RESERVATION"));
  TORPOR_RETURN_IF_ERROR(CheckTtl(spec.ttl));
  if (spec.parts.size() > kMaxReservationParts) {
    return InvalidArgument("BAD_RESERVATION", "a reservation has at most " +
                                                  std::to_string(kMaxReservationParts) + " parts")
        .With("parts", spec.parts.size())
        .With("limit", kMaxReservationParts);
  }
  for (const ReservationPart& part : spec.parts) {
    TORPOR_RETURN_IF_ERROR(CheckName(part.name, "reservation part", "BAD_RESERVATION"));
    if (part.device < Bytes(0) || part.device >= kAbsurd) {
      return InvalidArgument("BAD_RESERVATION",
                             "part " + part.name + " is negative or beyond 1 PiB")
          .With("part", part.name)
          .With("requested_bytes", part.device.value());
    }
  }
  const Bytes device = spec.device();
  if (spec.host < Bytes(0) || (device == Bytes(0) && spec.host == Bytes(0))) {
    return InvalidArgument("BAD_RESERVATION", "a reservation wants more than 0 bytes")
        .With("requested_bytes", device.value())
        .With("requested_host_bytes", spec.host.value());
  }
  return Status::Ok();
}

}  // namespace torpor
