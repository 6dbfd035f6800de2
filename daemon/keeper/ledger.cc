#include "daemon/keeper/ledger.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace torpor {
namespace {

template <typename Map>
void EraseOf(Map& map, WorkerId worker) {
  for (auto entry = map.begin(); entry != map.end();) {
    entry = entry->second.worker == worker ? map.erase(entry) : std::next(entry);
  }
}

template <typename Map>
void Append(const Map& map, std::vector<JournalRecord>& records) {
  for (const auto& [id, record] : map) records.emplace_back(record);
}

// N of "r-N"; 0 for what is no such name.
uint64_t NumberOf(std::string_view reservation) {
  if (reservation.substr(0, 2) != "r-") return 0;
  uint64_t number = 0;
  const char* const end = reservation.data() + reservation.size();
  const auto read = std::from_chars(reservation.data() + 2, end, number);
  return read.ec == std::errc() && read.ptr == end ? number : 0;
}

}  // namespace

void Ledger::Apply(const JournalRecord& record) {
  std::visit([this](const auto& one) { Note(one); }, record);
}

void Ledger::Apply(const std::vector<JournalRecord>& records) {
  std::vector<const ImageRecorded*> early;
  for (const JournalRecord& record : records) {
    const auto* const image = std::get_if<ImageRecorded>(&record);
    if (image != nullptr && segments_.count(image->segment) == 0) {
      early.push_back(image);
    } else {
      Apply(record);
    }
  }
  for (const ImageRecorded* image : early) {
    const auto found = segments_.find(image->segment);
    if (found != segments_.end() && found->second.state == JournalState::kOffloaded) Note(*image);
  }
}

void Ledger::Note(const SessionOpened& record) {
  ids_.worker = std::max(ids_.worker, record.worker);
  sessions_[record.worker] = record;
}

void Ledger::Note(const SessionClosed& record) {
  for (const auto& [id, segment] : segments_) {
    if (segment.worker == record.worker) images_.erase(id);
  }
  for (const auto& [id, extent] : extents_) {
    if (extent.worker == record.worker) lost_.erase(id);
  }
  EraseOf(segments_, record.worker);
  EraseOf(extents_, record.worker);
  processes_.erase(record.worker);
  users_.erase(record.worker);
  sessions_.erase(record.worker);
}

void Ledger::Note(const SegmentRecorded& record) {
  ids_.segment = std::max(ids_.segment, record.segment);
  if (sessions_.count(record.worker) == 0) return;
  segments_[record.segment] = record;
  if (record.state != JournalState::kOffloaded) images_.erase(record.segment);
}

void Ledger::Note(const SegmentFreed& record) {
  segments_.erase(record.segment);
  images_.erase(record.segment);
}

void Ledger::Note(const ExtentHeld& record) {
  ids_.extent = std::max(ids_.extent, record.extent);
  if (sessions_.count(record.worker) > 0) extents_[record.extent] = record;
}

void Ledger::Note(const ExtentDropped& record) {
  extents_.erase(record.extent);
  lost_.erase(record.extent);
}

void Ledger::Note(const ExtentLost& record) {
  if (extents_.count(record.extent) > 0) lost_.insert(record.extent);
}

void Ledger::Note(const PoolHeld& record) {
  if (!pool_.has_value() || pool_->id != record.id) images_.clear();
  pool_ = record;
}

void Ledger::Note(const SessionProcess& record) {
  if (sessions_.count(record.worker) > 0) processes_[record.worker] = record;
}

void Ledger::Note(const ImageRecorded& record) {
  if (segments_.count(record.segment) > 0) images_[record.segment] = record;
}

void Ledger::Note(const ReservationMade& record) {
  ids_.reservation = std::max(ids_.reservation, NumberOf(record.id));
  reservations_[record.id] = record;
}

void Ledger::Note(const ReservationRenewed& record) {
  const auto found = reservations_.find(record.id);
  if (found != reservations_.end()) found->second.expires = record.expires;
}

void Ledger::Note(const ReservationReleased& record) {
  reservations_.erase(record.id);
  surrendered_.erase(record.id);
  parts_.erase(record.id);
  owners_.erase(record.id);
}

void Ledger::Note(const ReservationSurrendered& record) {
  if (reservations_.count(record.id) > 0) surrendered_[record.id] = record;
}

void Ledger::Note(const ReservationParts& record) {
  if (reservations_.count(record.id) > 0) parts_[record.id] = record;
}

void Ledger::Note(const SessionUser& record) {
  if (sessions_.count(record.worker) > 0) users_[record.worker] = record;
}

void Ledger::Note(const ReservationOwner& record) {
  if (reservations_.count(record.id) > 0) owners_[record.id] = record;
}

void Ledger::Note(const IdsSeen& record) {
  ids_.worker = std::max(ids_.worker, record.worker);
  ids_.segment = std::max(ids_.segment, record.segment);
  ids_.extent = std::max(ids_.extent, record.extent);
  ids_.reservation = std::max(ids_.reservation, record.reservation);
}

bool Ledger::knows_ids() const {
  return ids_.worker.value() > 0 || ids_.segment.value() > 0 || ids_.extent.value() > 0 ||
         ids_.reservation > 0;
}

Status Ledger::CheckExtent(const ExtentHeld& extent) const {
  if (sessions_.count(extent.worker) > 0) return Status::Ok();
  return NotFound("UNKNOWN_WORKER", "an extent of a worker that has no session")
      .With("worker", extent.worker.value());
}

const SessionProcess* Ledger::FindProcess(WorkerId worker) const {
  const auto found = processes_.find(worker);
  return found == processes_.end() ? nullptr : &found->second;
}

const SessionUser* Ledger::FindUser(WorkerId worker) const {
  const auto found = users_.find(worker);
  return found == users_.end() ? nullptr : &found->second;
}

std::string Ledger::OwnerOf(const std::string& reservation) const {
  const auto found = owners_.find(reservation);
  return found == owners_.end() ? std::string() : found->second.owner;
}

Bytes Ledger::Surrendered(const std::string& reservation) const {
  const auto found = surrendered_.find(reservation);
  return found == surrendered_.end() ? Bytes(0) : found->second.bytes;
}

std::vector<RecordedPart> Ledger::Parts(const std::string& reservation) const {
  const auto found = parts_.find(reservation);
  return found == parts_.end() ? std::vector<RecordedPart>() : found->second.parts;
}

std::vector<JournalRecord> Ledger::Snapshot() const {
  std::vector<JournalRecord> records;
  records.reserve(size());
  if (knows_ids()) records.emplace_back(ids_);
  if (pool_.has_value()) records.emplace_back(*pool_);
  Append(sessions_, records);
  Append(processes_, records);
  Append(users_, records);
  Append(segments_, records);
  Append(extents_, records);
  for (const ExtentId id : lost_) records.emplace_back(ExtentLost{id});
  Append(images_, records);
  Append(reservations_, records);
  Append(parts_, records);
  Append(owners_, records);
  Append(surrendered_, records);
  if (daemon_.has_value()) records.emplace_back(*daemon_);
  return records;
}

size_t Ledger::size() const {
  return sessions_.size() + processes_.size() + users_.size() + segments_.size() + extents_.size() +
         lost_.size() + images_.size() + reservations_.size() + parts_.size() + owners_.size() +
         surrendered_.size() + (pool_.has_value() ? 1 : 0) + (daemon_.has_value() ? 1 : 0) +
         (knows_ids() ? 1 : 0);
}

}  // namespace torpor
