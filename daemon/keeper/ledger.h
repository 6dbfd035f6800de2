#ifndef TORPOR_DAEMON_KEEPER_LEDGER_H_
#define TORPOR_DAEMON_KEEPER_LEDGER_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/keeper/record.h"

namespace torpor {

// What is true after a sequence of records. Records of what is not there (any more) change nothing:
// the end of a session ends all that was its own, whatever is told of it afterwards. Not
// thread-safe.
class Ledger {
 public:
  void Apply(const JournalRecord& record);

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

 private:
  void Note(const SessionOpened& record) { sessions_[record.worker] = record; }
  void Note(const SessionClosed& record);
  void Note(const SegmentRecorded& record);
  void Note(const SegmentFreed& record);
  void Note(const ExtentHeld& record);
  void Note(const ExtentDropped& record) { extents_.erase(record.extent); }
  void Note(const ImageRecorded& record);
  void Note(const ImageDropped& record) { images_.erase(record.segment); }
  void Note(const ReservationMade& record) { reservations_[record.id] = record; }
  void Note(const ReservationRenewed& record);
  void Note(const ReservationReleased& record) { reservations_.erase(record.id); }
  void Note(const DaemonStarted& record) { daemon_ = record; }

  std::map<WorkerId, SessionOpened> sessions_;
  std::map<SegmentId, SegmentRecorded> segments_;
  std::map<ExtentId, ExtentHeld> extents_;
  std::map<SegmentId, ImageRecorded> images_;
  std::map<std::string, ReservationMade> reservations_;
  std::optional<DaemonStarted> daemon_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_LEDGER_H_
