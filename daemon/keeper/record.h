#ifndef TORPOR_DAEMON_KEEPER_RECORD_H_
#define TORPOR_DAEMON_KEEPER_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// What the journal knows: enough to find the memory of every worker again. Each record replaces or
// ends what an earlier one said of the same id; a record's number and fields stay as they are, what
// is new gets a new one (docs/journal.md).

struct SessionOpened {
  WorkerId worker;
  std::string name;
  std::string secret;
  std::string reservation = {};  // that it draws on; empty: none
  template <class A>
  void Fields(A& a) {
    a(worker, name, secret, reservation);
  }
};
struct SessionClosed {  // with all its segments and extents
  WorkerId worker;
  template <class A>
  void Fields(A& a) {
    a(worker);
  }
};
enum class JournalState : uint8_t { kResident, kOffloaded, kDiscarded };
struct SegmentRecorded {
  SegmentId segment;
  WorkerId worker;
  std::string tag;
  Bytes offset{};
  Bytes size{};
  JournalState state = JournalState::kResident;
  template <class A>
  void Fields(A& a) {
    a(segment, worker, tag, offset, size, state);
  }
};
struct SegmentFreed {  // with its image
  SegmentId segment;
  template <class A>
  void Fields(A& a) {
    a(segment);
  }
};
// Its descriptor is in custody.
struct ExtentHeld {
  ExtentId extent;
  WorkerId worker;
  std::string tag;
  Bytes offset{};
  Bytes size{};
  template <class A>
  void Fields(A& a) {
    a(extent, worker, tag, offset, size);
  }
};
struct ExtentDropped {
  ExtentId extent;
  template <class A>
  void Fields(A& a) {
    a(extent);
  }
};
struct RecordedBlock {
  Bytes place{};  // in the pool's file
  Bytes size{};
  template <class A>
  void Fields(A& a) {
    a(place, size);
  }
};
// Where the bytes of a segment lie that is offloaded: one block after the other, as they are.
struct ImageRecorded {
  SegmentId segment;
  std::vector<RecordedBlock> blocks;
  template <class A>
  void Fields(A& a) {
    a(segment, blocks);
  }
};
struct ImageDropped {
  SegmentId segment;
  template <class A>
  void Fields(A& a) {
    a(segment);
  }
};
struct ReservationMade {
  std::string id;
  std::string name;
  Bytes device{};
  Bytes host{};
  TimePoint expires{};  // of the machine's monotonic clock
  bool hold = false;
  bool keep = false;
  template <class A>
  void Fields(A& a) {
    auto at = expires.time_since_epoch().count();
    a(id, name, device, host, at, hold, keep);
    expires = TimePoint(Duration(at));
  }
};
struct ReservationRenewed {
  std::string id;
  TimePoint expires{};
  template <class A>
  void Fields(A& a) {
    auto at = expires.time_since_epoch().count();
    a(id, at);
    expires = TimePoint(Duration(at));
  }
};
struct ReservationReleased {  // or over for another reason than time
  std::string id;
  template <class A>
  void Fields(A& a) {
    a(id);
  }
};

// The process that the keeper has started, by number and time of its start (Supervisor).
struct DaemonStarted {
  int32_t pid = 0;
  uint64_t started = 0;
  template <class A>
  void Fields(A& a) {
    a(pid, started);
  }
};

// The highest numbers that were ever given out, so that none is given out again.
struct IdsSeen {
  WorkerId worker;
  SegmentId segment;
  ExtentId extent;
  uint64_t reservation = 0;  // N of "r-N"
  template <class A>
  void Fields(A& a) {
    a(worker, segment, extent, reservation);
  }
};

// The host pool that images lie in from now on. Another one than before has none of them.
struct PoolHeld {
  uint64_t id = 0;   // of these bytes, wherever they are found; never 0
  std::string kind;  // PoolMemory::description
  Bytes size{};
  Bytes slab{};
  std::string path = {};  // of its file; empty: it has no name
  template <class A>
  void Fields(A& a) {
    a(id, kind, size, slab, path);
  }
};

// The process of a worker's session, so that its end is noticed by whoever has no connection to it.
struct SessionProcess {
  WorkerId worker;
  int32_t pid = 0;
  uint64_t started = 0;        // ProcessId
  uint64_t pid_namespace = 0;  // in which the pid is meant
  template <class A>
  void Fields(A& a) {
    a(worker, pid, started, pid_namespace);
  }
};

// Only its worker has its memory any more: the descriptor is not in custody, and a segment in it
// cannot be taken over.
struct ExtentLost {
  ExtentId extent;
  template <class A>
  void Fields(A& a) {
    a(extent);
  }
};

// What was drawn from it, and has gone with a sleep: all of that, since it was made.
struct ReservationSurrendered {
  std::string id;
  Bytes bytes{};
  template <class A>
  void Fields(A& a) {
    a(id, bytes);
  }
};

struct RecordedPart {
  std::string name;
  Bytes device{};
  template <class A>
  void Fields(A& a) {
    a(name, device);
  }
};
// What it was asked for, part by part; with ReservationMade.
struct ReservationParts {
  std::string id;
  std::vector<RecordedPart> parts;
  template <class A>
  void Fields(A& a) {
    a(id, parts);
  }
};

// Who a worker's session is of: its effective user and group.
struct SessionUser {
  WorkerId worker;
  uint32_t uid = 0;
  uint32_t gid = 0;
  template <class A>
  void Fields(A& a) {
    a(worker, uid, gid);
  }
};

// Who made it, where that is not an operator (Owner::name); with ReservationMade.
struct ReservationOwner {
  std::string id;
  std::string owner;
  template <class A>
  void Fields(A& a) {
    a(id, owner);
  }
};

// The number of a record in the file is its place here.
using JournalRecord =
    std::variant<SessionOpened, SessionClosed, SegmentRecorded, SegmentFreed, ExtentHeld,
                 ExtentDropped, ImageRecorded, ImageDropped, ReservationMade, ReservationRenewed,
                 ReservationReleased, DaemonStarted, IdsSeen, PoolHeld, SessionProcess, ExtentLost,
                 ReservationSurrendered, ReservationParts, SessionUser, ReservationOwner>;

// True for records that end something: without them the journal says too much, never too little.
bool IsEnd(const JournalRecord& record);

std::string EncodeRecord(const JournalRecord& record);
// DATA_LOSS BAD_RECORD: with number and record_bytes.
Result<JournalRecord> DecodeRecord(std::string_view bytes);

// Records that are true together: as one entry of the journal's file they are all there or none.
std::string EncodeRecords(const std::vector<JournalRecord>& records);
// Errors as DecodeRecord.
Result<std::vector<JournalRecord>> DecodeRecords(std::string_view bytes);

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_RECORD_H_
