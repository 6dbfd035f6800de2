#ifndef TORPOR_DAEMON_KEEPER_LEDGER_H_
#define TORPOR_DAEMON_KEEPER_LEDGER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/keeper/record.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// What is true after a sequence of records. Records of what is not there (any more) change nothing:
// the end of a session ends all that was its own, whatever is told of it afterwards. Only a segment
// that is offloaded has an image: a record that says otherwise ends it, and so does another pool.
// Not thread-safe.
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
  const std::optional<PoolHeld>& pool() const { return pool_; }
  // Those of `extents` whose memory only the worker has.
  const std::set<ExtentId>& lost() const { return lost_; }
  // Null: unknown.
  const SessionProcess* FindProcess(WorkerId worker) const;
  const SessionUser* FindUser(WorkerId worker) const;
  Bytes Surrendered(const std::string& reservation) const;
  // Empty: an operator's.
  std::string OwnerOf(const std::string& reservation) const;
  std::vector<RecordedPart> Parts(const std::string& reservation) const;
  const std::optional<DaemonStarted>& daemon() const { return daemon_; }
  // Of all that was ever recorded, whatever has become of it.
  const IdsSeen& ids() const { return ids_; }

 private:
  void Note(const SessionOpened& record);
  void Note(const SessionClosed& record);
  void Note(const SegmentRecorded& record);
  void Note(const SegmentFreed& record);
  void Note(const ExtentHeld& record);
  void Note(const ExtentDropped& record);
  void Note(const ImageRecorded& record);
  void Note(const ImageDropped& record) { images_.erase(record.segment); }
  void Note(const ReservationMade& record);
  void Note(const ReservationRenewed& record);
  void Note(const ReservationReleased& record);
  void Note(const DaemonStarted& record) { daemon_ = record; }
  void Note(const IdsSeen& record);
  void Note(const PoolHeld& record);
  void Note(const SessionProcess& record);
  void Note(const ExtentLost& record);
  void Note(const ReservationSurrendered& record);
  void Note(const ReservationParts& record);
  void Note(const SessionUser& record);
  void Note(const ReservationOwner& record);
  bool knows_ids() const;

  std::map<WorkerId, SessionOpened> sessions_;
  std::map<SegmentId, SegmentRecorded> segments_;
  std::map<ExtentId, ExtentHeld> extents_;
  std::map<SegmentId, ImageRecorded> images_;
  std::map<std::string, ReservationMade> reservations_;
  std::map<WorkerId, SessionProcess> processes_;
  std::map<WorkerId, SessionUser> users_;
  std::set<ExtentId> lost_;
  std::map<std::string, ReservationSurrendered> surrendered_;
  std::map<std::string, ReservationParts> parts_;
  std::map<std::string, ReservationOwner> owners_;
  std::optional<PoolHeld> pool_;
  std::optional<DaemonStarted> daemon_;
  IdsSeen ids_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_LEDGER_H_
