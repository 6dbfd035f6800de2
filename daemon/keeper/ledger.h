#ifndef TORPOR_DAEMON_KEEPER_LEDGER_H_
#define TORPOR_DAEMON_KEEPER_LEDGER_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/keeper/record.h"
#include "lib/base/status.h"

namespace torpor {

// What is true after a sequence of records. Records of what is not there (any more) change nothing:
// the end of a session ends all that was its own, whatever is told of it afterwards. Only a segment
// that is offloaded has an image: a record that says otherwise ends it. Not thread-safe.
class Ledger {
 public:
  void Apply(const JournalRecord& record);
  // Records that are true together: an image may come before its segment.
  void Apply(const std::vector<JournalRecord>& records);

  // Whether an extent can be held: NOT_FOUND UNKNOWN_WORKER if its worker has no session.
  Status CheckExtent(const ExtentHeld& extent) const;

  // The records that lead here, as few as there are; what others refer to comes first.
  std::vector<JournalRecord> Snapshot() const;
  // How many those are.
  size_t size() const;

  const std::map<WorkerId, SessionOpened>& sessions() const { return sessions_; }
  const std::map<SegmentId, SegmentRecorded>& segments() const { return segments_; }
  const std::map<ExtentId, ExtentHeld>& extents() const { return extents_; }
  const std::map<SegmentId, ImageRecorded>& images() const { return images_; }
  const std::map<std::string, ReservationMade>& reservations() const { return reservations_; }
  const std::optional<DaemonStarted>& daemon() const { return daemon_; }
  // Of all that was ever recorded, whatever has become of it.
  const IdsSeen& ids() const { return ids_; }

 private:
  void Note(const SessionOpened& record);
  void Note(const SessionClosed& record);
  void Note(const SegmentRecorded& record);
  void Note(const SegmentFreed& record);
  void Note(const ExtentHeld& record);
  void Note(const ExtentDropped& record) { extents_.erase(record.extent); }
  void Note(const ImageRecorded& record);
  void Note(const ImageDropped& record) { images_.erase(record.segment); }
  void Note(const ReservationMade& record);
  void Note(const ReservationRenewed& record);
  void Note(const ReservationReleased& record) { reservations_.erase(record.id); }
  void Note(const DaemonStarted& record) { daemon_ = record; }
  void Note(const IdsSeen& record);
  bool knows_ids() const;

  std::map<WorkerId, SessionOpened> sessions_;
  std::map<SegmentId, SegmentRecorded> segments_;
  std::map<ExtentId, ExtentHeld> extents_;
  std::map<SegmentId, ImageRecorded> images_;
  std::map<std::string, ReservationMade> reservations_;
  std::optional<DaemonStarted> daemon_;
  IdsSeen ids_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_LEDGER_H_
