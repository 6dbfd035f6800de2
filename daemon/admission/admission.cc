#include "daemon/admission/admission.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "lib/base/utf8.h"

namespace torpor {
namespace {

// How long the end of a reservation is remembered, so that it is told from one that never was.
constexpr Duration kMemory = std::chrono::minutes(10);
constexpr int kMeasurements = 5;

}  // namespace

// --- Draw

Draw& Draw::operator=(Draw&& other) noexcept {
  if (this == &other) return *this;
  Return();
  admission_ = std::exchange(other.admission_, nullptr);
  host_ = other.host_;
  size_ = std::exchange(other.size_, Bytes(0));
  promised_ = std::exchange(other.promised_, Bytes(0));
  reservation_ = std::move(other.reservation_);
  created_ = other.created_;
  surrendered_ = other.surrendered_;
  return *this;
}

Draw Draw::Split(Bytes size) {
  Draw part;
  part.admission_ = admission_;
  part.host_ = host_;
  part.size_ = std::min(size, size_);
  part.promised_ = std::min(part.size_, promised_);
  part.reservation_ = reservation_;
  part.created_ = created_;
  part.surrendered_ = surrendered_;
  size_ -= part.size_;
  promised_ -= part.promised_;
  return part;
}

void Draw::Return() {
  if (Admission* const admission = std::exchange(admission_, nullptr)) admission->ReturnDraw(*this);
}

// --- Admission

Bytes Admission::Reservation::LeftDevice(TimePoint now) const {
  if (Over(now)) return Bytes(0);
  return stats.device - stats.drawn_device - stats.surrendered_device;
}

Bytes Admission::Reservation::LeftHost(TimePoint now) const {
  return Over(now) ? Bytes(0) : stats.host - stats.drawn_host;
}

Bytes Admission::PromisedDevice() const {
  const TimePoint now = clock_.Now();
  Bytes sum{};
  for (const auto& [id, reservation] : reservations_) sum += reservation.LeftDevice(now);
  return sum;
}

Bytes Admission::PromisedHost() const {
  const TimePoint now = clock_.Now();
  Bytes sum{};
  for (const auto& [id, reservation] : reservations_) sum += reservation.LeftHost(now);
  return sum;
}

Bytes Admission::promised_host() const {
  MutexLock lock(mutex_);
  return PromisedHost();
}

Admission::ReservationMap::iterator Admission::SetAside(ReservationMap::iterator it) {
  const auto next = std::next(it);
  const Reservation& reservation = it->second;
  const ReservationStats& stats = reservation.stats;
  const bool drawn = stats.drawn_device > Bytes(0) || stats.drawn_host > Bytes(0);
  if (drawn || stats.holders > 0 || !reservation.Over(clock_.Now())) return next;
  past_order_.push_back(it->first);
  past_[it->first] = {reservation.end, stats.expires, stats.owner};
  reservations_.erase(it);
  return next;
}

void Admission::ForgetOld() {
  TellExpired();
  const TimePoint now = clock_.Now();
  while (!past_order_.empty()) {
    const auto oldest = past_.find(past_order_.front());
    if (past_.size() < kMaxPast && oldest->second.ended + kMemory > now) return;
    past_.erase(oldest);
    past_order_.pop_front();
  }
}

std::optional<TimePoint> Admission::TellExpired() {
  const TimePoint now = clock_.Now();
  std::optional<TimePoint> next;
  for (auto it = reservations_.begin(); it != reservations_.end();) {
    Reservation& reservation = it->second;
    const ReservationStats& stats = reservation.stats;
    if (reservation.end == End::kNone && !reservation.expiry_told) {
      if (stats.expires > now) {
        next = std::min(next.value_or(stats.expires), stats.expires);
      } else {
        reservation.expiry_told = true;
        expired_.push_back(it->first);
        announcer_.Reservation(ReservationEvent::Change::kExpired, stats,
                               stats.device - stats.drawn_device - stats.surrendered_device,
                               stats.host - stats.drawn_host);
      }
    }
    it = SetAside(it);
  }
  return next;
}

BudgetStats Admission::Arithmetic(const DeviceMemory::Measurement& measurement) const {
  BudgetStats budget;
  budget.total = measurement.total;
  budget.free = measurement.free;
  budget.resident = measurement.resident();
  budget.context = measurement.context;
  budget.other = measurement.other();
  budget.promised = PromisedDevice();
  budget.safety_reserve = options_.safety_reserve;
  // What was created since the measurement is still pending for it. What it found released, while
  // the draw is yet to be returned, may be promised in a moment.
  budget.pending = granted_ - unused_ - measurement.created +
                   std::max(Bytes(0), measurement.released - returned_);
  const Bytes left = budget.free - budget.promised - budget.safety_reserve - budget.pending;
  budget.available = std::max(Bytes(0), left);
  // The safety reserve is ours to give up first: only promises beyond free memory are broken ones.
  // Nor are those that rest on what came free after the measurement, or may have during it.
  const Bytes not_seen =
      measurement.unsettled + std::max(Bytes(0), returned_ - measurement.released);
  budget.overcommitted =
      std::max(Bytes(0), budget.promised + budget.pending - budget.free - not_seen);
  announcer_.Measured(budget);
  return budget;
}

Admission::Funds Admission::Count(const DeviceMemory::Measurement& measurement) const {
  return {Arithmetic(measurement), PromisedHost()};
}

Shortage Admission::Compare(const Need& need, const Need& kept, const Funds& funds) const {
  Shortage shortage;
  shortage.device = need.device;
  shortage.host = need.host;
  shortage.budget = funds.budget;
  shortage.kept = kept.device;
  shortage.waiters = queue_.size();
  shortage.host_budget = options_.host_budget;
  shortage.host_used = used_host_;
  shortage.host_promised = funds.host_promised;
  shortage.host_kept = kept.host;
  return shortage;
}

LargestHolders Admission::LargestPromises() const {
  std::vector<const Reservation*> all;
  all.reserve(reservations_.size());
  for (const auto& [id, reservation] : reservations_) all.push_back(&reservation);
  const TimePoint now = clock_.Now();
  LargestHolders largest;
  for (const Reservation* const one :
       TenLargest(all, largest.others,
                  [now](const Reservation* reservation) { return reservation->LeftDevice(now); })) {
    largest.holders.push_back({one->stats.id, one->stats.name, one->LeftDevice(now)});
  }
  return largest;
}

std::vector<MemoryHolder> Admission::Workers() const {
  return holders_ == nullptr ? std::vector<MemoryHolder>() : holders_();
}

Status Admission::Admit(const Need& need, Place place,
                        const std::function<Status(const BudgetStats&)>& grant) {
  Shortage shortage;
  for (int attempt = 1;; ++attempt) {
    // Who has released memory is about to return it.
    if (attempt > 2) std::this_thread::sleep_for(milliseconds(attempt));
    TORPOR_ASSIGN_OR_RETURN(const auto measurement,
                            measure_(attempt == 1 ? Accuracy::kAtOnce : Accuracy::kSettled));
    MutexLock lock(mutex_);
    const Need kept = place == Place::kAfterAll
                          ? Need{queue_.device(), queue_.host()}
                          : Need{queue_.PatientlyAwaited(options_.patience, clock_.Now()), {}};
    shortage = Compare(need, kept, Count(measurement));
    if (shortage.fits()) return grant(shortage.budget);
    // Created during the measurement, or returned to its promise and not yet free for it: counted
    // twice. What does not settle, a call that hangs, is not waited for again.
    const bool settled = measurement.unsettled == Bytes(0);
    const bool last = settled ? returned_ == measurement.released : attempt > 1;
    if (last || attempt == kMeasurements) {
      shortage.promises = LargestPromises();
      break;
    }
  }
  return Refusal(shortage, Workers());
}

Status Admission::IsOver(const std::string& id, End end, Bytes drawn) {
  return FailedPrecondition(end == End::kReleased ? "RESERVATION_RELEASED"
                            : end == End::kUnheld ? "RESERVATION_ENDED"
                                                  : "RESERVATION_EXPIRED",
                            "reservation " + id +
                                (end == End::kReleased ? " was released"
                                 : end == End::kUnheld ? " ended with its last worker's session"
                                                       : " has expired"))
      .With("reservation", id)
      .With("drawn_bytes", drawn.value());
}

Result<Admission::Reservation*> Admission::FindLive(const std::string& id) {
  if (const auto it = reservations_.find(id); it != reservations_.end()) {
    Reservation& reservation = it->second;
    if (!reservation.Over(clock_.Now())) return &reservation;
    return IsOver(id, reservation.end, reservation.stats.drawn_device);
  }
  if (const auto it = past_.find(id); it != past_.end()) {
    return IsOver(id, it->second.end, Bytes(0));
  }
  const std::string shown = Shorten(id);
  return NotFound("UNKNOWN_RESERVATION", "there is no reservation \"" + shown + "\"")
      .With("reservation", shown);
}

Status Admission::Check(const std::string& id) {
  MutexLock lock(mutex_);
  return FindLive(id).status();
}

Draw Admission::MakeDraw(Bytes size) {
  granted_ += size;
  Draw draw;
  draw.admission_ = this;
  draw.size_ = size;
  return draw;
}

Result<Draw> Admission::DrawDevice(Bytes size, const std::string& id) {
  Draw draw;
  if (id.empty()) {
    if (options_.require_reservation) {
      return FailedPrecondition("RESERVATION_REQUIRED",
                                "this daemon gives device memory under reservations only")
          .With("requested_bytes", size.value());
    }
    TORPOR_RETURN_IF_ERROR(
        Admit({size, {}}, Place::kPassing, [&](const BudgetStats&) NO_THREAD_SAFETY_ANALYSIS {
          draw = MakeDraw(size);
          return Status::Ok();
        }));
    return draw;
  }
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Reservation* const reservation, FindLive(id));
  const Bytes left = reservation->LeftDevice(clock_.Now());
  if (size > left) {
    return ResourceExhausted("RESERVATION_TOO_SMALL",
                             FormatBytes(size) + " asked, reservation " + id + " has " +
                                 FormatBytes(left) + " of " +
                                 FormatBytes(reservation->stats.device) + " left")
        .With("reservation", id)
        .With("requested_bytes", size.value())
        .With("available_bytes", left.value())
        .With("drawn_bytes", reservation->stats.drawn_device.value())
        .With("surrendered_bytes", reservation->stats.surrendered_device.value())
        .With("reserved_bytes", reservation->stats.device.value());
  }
  reservation->stats.drawn_device += size;
  if (size == left) {
    announcer_.Reservation(ReservationEvent::Change::kDrawnOut, reservation->stats, {}, {});
  }
  draw = MakeDraw(size);
  draw.promised_ = size;
  draw.reservation_ = id;
  return draw;
}

Result<Draw> Admission::DrawHost(Bytes size, const std::string& id) {
  MutexLock lock(mutex_);
  const auto it = reservations_.find(id);
  Bytes covered{};
  if (it != reservations_.end()) covered = std::min(size, it->second.LeftHost(clock_.Now()));
  const Bytes promised = PromisedHost();
  const Bytes available = options_.host_budget - used_host_ - promised;
  if (size - covered > available) {
    return HostRefusal({size, available + covered, used_host_, promised, options_.host_budget});
  }
  used_host_ += size;
  Draw draw;
  draw.admission_ = this;
  draw.host_ = true;
  draw.size_ = size;
  draw.promised_ = covered;
  if (covered > Bytes(0)) {
    it->second.stats.drawn_host += covered;
    draw.reservation_ = id;
  }
  return draw;
}

Bytes Admission::Surrendered(const std::string& id) const {
  MutexLock lock(mutex_);
  const auto it = reservations_.find(id);
  return it == reservations_.end() ? Bytes(0) : it->second.stats.surrendered_device;
}

std::optional<std::string> Admission::OwnerOf(const std::string& id) const {
  MutexLock lock(mutex_);
  if (const auto it = reservations_.find(id); it != reservations_.end()) {
    return it->second.stats.owner;
  }
  if (const auto it = past_.find(id); it != past_.end()) return it->second.owner;
  return std::nullopt;
}

std::vector<std::string> Admission::TakeExpired() {
  MutexLock lock(mutex_);
  return std::exchange(expired_, {});
}

void Admission::RestoreReservation(const ReservationStats& stats, Bytes surrendered) {
  MutexLock lock(mutex_);
  if (stats.expires <= clock_.Now()) return;
  ReservationStats& restored = reservations_[stats.id].stats;
  restored = stats;
  restored.surrendered_device = std::min(surrendered, stats.device);
}

void Admission::SkipReservations(uint64_t last) {
  MutexLock lock(mutex_);
  next_reservation_ = std::max(next_reservation_, last + 1);
}

Draw Admission::RestoreDevice(Bytes size, const std::string& id) {
  MutexLock lock(mutex_);
  Draw draw = MakeDraw(size);
  if (const auto it = reservations_.find(id); it != reservations_.end()) {
    draw.promised_ = std::min(size, it->second.LeftDevice(clock_.Now()));
    it->second.stats.drawn_device += draw.promised_;
    draw.reservation_ = id;
  }
  return draw;
}

Result<Draw> Admission::RestoreHost(Bytes size, const std::string& id) {
  MutexLock lock(mutex_);
  if (size > options_.host_budget - used_host_) {
    return HostRefusal({size, options_.host_budget - used_host_, used_host_, PromisedHost(),
                        options_.host_budget});
  }
  used_host_ += size;
  Draw draw;
  draw.admission_ = this;
  draw.host_ = true;
  draw.size_ = size;
  if (const auto it = reservations_.find(id); it != reservations_.end()) {
    draw.promised_ = std::min(size, it->second.LeftHost(clock_.Now()));
    it->second.stats.drawn_host += draw.promised_;
    draw.reservation_ = id;
  }
  return draw;
}

void Admission::ReturnDraw(Draw& draw) {
  MutexLock lock(mutex_);
  if (draw.host_) {
    used_host_ -= draw.size_;
  } else {
    (draw.created_ ? returned_ : unused_) += draw.size_;
  }
  Changed();
  const auto it = reservations_.find(draw.reservation_);
  if (it == reservations_.end()) return;
  ReservationStats& stats = it->second.stats;
  (draw.host_ ? stats.drawn_host : stats.drawn_device) -= draw.promised_;
  if (draw.surrendered_ && !draw.host_ && !stats.hold) stats.surrendered_device += draw.promised_;
  if (it->second.end != End::kNone || it->second.expiry_told) SetAside(it);
}

Result<TimePoint> Admission::Renew(const std::string& id, Duration ttl) {
  TORPOR_RETURN_IF_ERROR(CheckTtl(ttl));
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Reservation* const reservation, FindLive(id));
  reservation->stats.expires = clock_.Now() + ttl;
  announcer_.Reservation(ReservationEvent::Change::kRenewed, reservation->stats,
                         reservation->LeftDevice(clock_.Now()),
                         reservation->LeftHost(clock_.Now()));
  Changed();
  wake_server_.NotifyAll();  // it waits for the next expiry
  return reservation->stats.expires;
}

Result<Admission::Released> Admission::Release(const std::string& id) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Reservation* const reservation, FindLive(id));
  const Released released{reservation->LeftDevice(clock_.Now()),
                          reservation->LeftHost(clock_.Now())};
  reservation->end = End::kReleased;
  reservation->stats.expires = std::min(reservation->stats.expires, clock_.Now());
  announcer_.Reservation(ReservationEvent::Change::kReleased, reservation->stats, released.device,
                         released.host);
  SetAside(reservations_.find(id));
  Changed();
  return released;
}

Status Admission::AddHolder(const std::string& id) {
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(Reservation* const reservation, FindLive(id));
  ++reservation->stats.holders;
  return Status::Ok();
}

bool Admission::RemoveHolder(const std::string& id) {
  MutexLock lock(mutex_);
  const auto it = reservations_.find(id);
  if (it == reservations_.end()) return false;
  Reservation& reservation = it->second;
  const bool last = --reservation.stats.holders == 0;
  if (reservation.Over(clock_.Now())) {
    if (reservation.end != End::kNone || reservation.expiry_told) SetAside(it);
    return false;
  }
  if (!last || reservation.stats.keep) return false;
  announcer_.Reservation(ReservationEvent::Change::kEnded, reservation.stats,
                         reservation.LeftDevice(clock_.Now()), reservation.LeftHost(clock_.Now()));
  reservation.end = End::kUnheld;
  reservation.stats.expires = clock_.Now();
  SetAside(it);
  Changed();
  return true;
}

Result<BudgetStats> Admission::Budget() {
  TORPOR_ASSIGN_OR_RETURN(const auto measurement, measure_(Accuracy::kAtOnce));
  MutexLock lock(mutex_);
  TellExpired();
  return Arithmetic(measurement);
}

std::vector<ReservationStats> Admission::Reservations() const {
  MutexLock lock(mutex_);
  std::vector<ReservationStats> all;
  for (const auto& [id, reservation] : reservations_) {
    if (!reservation.Over(clock_.Now())) all.push_back(reservation.stats);
  }
  return all;
}

}  // namespace torpor
