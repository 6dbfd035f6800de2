#include "daemon/keeper/ledger.h"

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

}  // namespace

void Ledger::Apply(const JournalRecord& record) {
  std::visit([this](const auto& one) { Note(one); }, record);
}

void Ledger::Note(const SessionClosed& record) {
  for (const auto& [id, segment] : segments_) {
    if (segment.worker == record.worker) images_.erase(id);
  }
  EraseOf(segments_, record.worker);
  EraseOf(extents_, record.worker);
  sessions_.erase(record.worker);
}

void Ledger::Note(const SegmentRecorded& record) {
  if (sessions_.count(record.worker) > 0) segments_[record.segment] = record;
}

void Ledger::Note(const SegmentFreed& record) {
  segments_.erase(record.segment);
  images_.erase(record.segment);
}

void Ledger::Note(const ExtentHeld& record) {
  if (sessions_.count(record.worker) > 0) extents_[record.extent] = record;
}

void Ledger::Note(const ImageRecorded& record) {
  if (segments_.count(record.segment) > 0) images_[record.segment] = record;
}

void Ledger::Note(const ReservationRenewed& record) {
  const auto found = reservations_.find(record.id);
  if (found != reservations_.end()) found->second.expires = record.expires;
}

std::vector<JournalRecord> Ledger::Snapshot() const {
  std::vector<JournalRecord> records;
  records.reserve(size());
  Append(sessions_, records);
  Append(segments_, records);
  Append(extents_, records);
  Append(images_, records);
  Append(reservations_, records);
  if (daemon_.has_value()) records.emplace_back(*daemon_);
  return records;
}

size_t Ledger::size() const {
  return sessions_.size() + segments_.size() + extents_.size() + images_.size() +
         reservations_.size() + (daemon_.has_value() ? 1 : 0);
}

}  // namespace torpor
