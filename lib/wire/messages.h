#ifndef TORPOR_LIB_WIRE_MESSAGES_H_
#define TORPOR_LIB_WIRE_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/wire/codec.h"

// The worker plane: what daemon and worker say to each other on the worker socket.
//
// Either side asks; the answer repeats the frame's id and has the asker's type + 1. Ids of the two
// directions are independent. Answers may come in any order. Offsets are in the arena of a tag;
// all sizes and offsets are multiples of the device's granularity. Whoever changes a message raises
// net::kFrameVersion.
namespace torpor::wire {

enum class Type : uint16_t {
  // Asked by the worker.
  kHello = 0x100,  // first frame of a connection, and only then
  kAllocate = 0x110,
  kAllocated = 0x112,  // "mapped" or "could not be mapped"
  kFree = 0x114,
  kFreed = 0x116,  // "unmapped what Free's answer named"
  kSleep = 0x120,
  kWakeUp = 0x122,
  kUsage = 0x124,
  kSetQuiesce = 0x126,
  kReport = 0x128,
  kSetSleepEndpoint = 0x12a,
  // Asked by the daemon.
  kQuiesce = 0x200,
  kUnmap = 0x202,
  kMap = 0x204,
  kResume = 0x206,
  kCancel = 0x208,
};

constexpr uint16_t Answer(Type type) { return static_cast<uint16_t>(type) + 1; }

// How a worker can be brought to rest by others than itself.
enum class Quiesce : uint8_t {
  kNone = 0,         // only its own call may put it to sleep
  kSynchronize = 1,  // a device synchronize is enough: it submits nothing while asleep
  kGuard = 2,        // submits only inside the work guard
  kCallback = 3,     // a pause callback stops submission
};

constexpr size_t kLongestEndpoint = 255;

enum class Policy : uint8_t { kKeep = 0, kOffload = 1, kDiscard = 2 };

struct Extent {
  ExtentId id;
  Bytes offset{};  // in its arena
  Bytes size{};
  template <class A>
  void Fields(A& a) {
    a(id, offset, size);
  }
};

struct Hello {
  std::string name;         // of the worker; empty: the daemon makes one of the pid
  std::string device_uuid;  // of the GPU that the worker will use; empty: whatever the daemon has
  Quiesce quiesce = Quiesce::kNone;
  std::string reservation;  // id; empty: draw on the free budget
  // Of a worker that comes back after the daemon's restart, from its HelloReply; 0: a new session.
  WorkerId session;
  std::string secret;
  std::vector<SegmentId> segments;  // those that the worker has, without what it is freeing
  template <class A>
  void Fields(A& a) {
    a(name, device_uuid, quiesce, reservation, session, secret, segments);
  }
};
struct HelloReply {
  Status status;
  WorkerId worker;
  std::string secret;  // 16 random bytes, to come back with
  std::string device_kind;
  std::string device_uuid;
  Bytes device_total{};
  Bytes granularity{};
  Bytes arena_size{};  // how large a range the worker reserves for each tag
  // How long a daemon that has died and is started again waits for the worker; 0: it would not know
  // the session any more.
  int64_t reconnect_grace_ms = 0;
  // Segments of Hello that the daemon does not have. Their memory, if they have any, is the
  // worker's alone from now on: it cannot sleep, and goes with the worker's unmapping.
  std::vector<SegmentId> lost;
  template <class A>
  void Fields(A& a) {
    a(status, worker, secret, device_kind, device_uuid, device_total, granularity, arena_size,
      reconnect_grace_ms, lost);
  }
};

struct Allocate {
  std::string tag;
  Bytes size{};  // any positive number; rounded up
  int64_t timeout_ms =
      0;  // how long to wait for memory; 0: refused at once, -1: as long as it takes
  template <class A>
  void Fields(A& a) {
    a(tag, size, timeout_ms);
  }
};
// With a descriptor for each extent, in order. No extent: the range is mapped already (a part that
// was freed before). The segment exists for others once Allocated has been answered.
struct AllocateReply {
  Status status;
  SegmentId segment;
  Bytes offset{};
  Bytes size{};
  std::vector<Extent> extents;
  template <class A>
  void Fields(A& a) {
    a(status, segment, offset, size, extents);
  }
};
struct Allocated {
  SegmentId segment;
  Status status;  // not OK: nothing of it is mapped; the daemon drops the segment
  template <class A>
  void Fields(A& a) {
    a(segment, status);
  }
};

struct Free {
  SegmentId segment;
  template <class A>
  void Fields(A& a) {
    a(segment);
  }
};
// The tags of a worker that have a segment without memory. Of two the one with the higher revision
// is the later; 0: nothing is said.
struct AsleepTags {
  uint64_t revision = 0;
  std::vector<std::string> tags;
  template <class A>
  void Fields(A& a) {
    a(revision, tags);
  }
};
// `unmap`: extents that nothing lives in any more; the worker unmaps them and says Freed. Empty
// when the segment slept, shares its extents, or is under an operation that will finish the job;
// `asleep` then says what still sleeps.
struct FreeReply {
  Status status;
  std::vector<Extent> unmap;
  AsleepTags asleep;
  template <class A>
  void Fields(A& a) {
    a(status, unmap, asleep);
  }
};
struct Freed {
  SegmentId segment;
  template <class A>
  void Fields(A& a) {
    a(segment);
  }
};

struct TagPolicy {
  std::string tag;
  Policy policy = Policy::kKeep;
  template <class A>
  void Fields(A& a) {
    a(tag, policy);
  }
};
// A worker's own sleep: of itself only. Either `level` (1, 2) or `policies`.
struct Sleep {
  std::vector<std::string> tags;  // empty: all
  int32_t level = 0;
  std::vector<TagPolicy> policies;
  bool force = false;
  int64_t timeout_ms = 0;  // 0: none
  template <class A>
  void Fields(A& a) {
    a(tags, level, policies, force, timeout_ms);
  }
};
struct WakeUp {
  std::vector<std::string> tags;  // empty: all; otherwise also the order
  std::string reservation;
  int64_t timeout_ms = 0;
  template <class A>
  void Fields(A& a) {
    a(tags, reservation, timeout_ms);
  }
};
struct SleepReply {  // and WakeUp's
  Status status;
  Bytes device{};     // freed by a sleep, taken by a wake
  Bytes copied{};     // between device and host pool
  Bytes discarded{};  // dropped by a sleep, cleared by a wake
  template <class A>
  void Fields(A& a) {
    a(status, device, copied, discarded);
  }
};

struct TagUsage {
  std::string tag;
  uint64_t segments = 0;
  Bytes resident{};
  Bytes offloaded{};
  Bytes discarded{};
  template <class A>
  void Fields(A& a) {
    a(tag, segments, resident, offloaded, discarded);
  }
};
struct Usage {
  uint8_t unused = 0;
  template <class A>
  void Fields(A& a) {
    a(unused);
  }
};
struct UsageReply {
  Status status;
  Bytes device_total{};
  Bytes device_free{};
  Bytes available{};  // what could be allocated now without a reservation
  std::vector<TagUsage> tags;
  template <class A>
  void Fields(A& a) {
    a(status, device_total, device_free, available, tags);
  }
};

struct SetQuiesce {
  Quiesce quiesce = Quiesce::kNone;
  template <class A>
  void Fields(A& a) {
    a(quiesce);
  }
};
// How the worker is put to sleep by its own means, for people: at most kLongestEndpoint bytes of
// UTF-8 without control characters. Empty: nothing is known.
struct SetSleepEndpoint {
  std::string endpoint;
  template <class A>
  void Fields(A& a) {
    a(endpoint);
  }
};
// What the worker's own allocator says; shown beside the daemon's figures.
struct Report {
  Bytes live{};      // bytes in tensors
  Bytes reserved{};  // bytes that the allocator holds
  template <class A>
  void Fields(A& a) {
    a(live, reserved);
  }
};

// Answer to Allocated, Freed, SetQuiesce, SetSleepEndpoint, Report, Quiesce, Unmap, Map, Resume.
struct StatusReply {
  Status status;
  template <class A>
  void Fields(A& a) {
    a(status);
  }
};

// Stop submitting work, wait for what was submitted; hold still until Resume.
struct QuiesceRequest {
  OperationId operation;
  bool own = false;  // the worker's own call caused it
  template <class A>
  void Fields(A& a) {
    a(operation, own);
  }
};
// Unmap and drop the handles of these extents. Those that are not mapped are passed over.
struct UnmapRequest {
  OperationId operation;
  std::string tag;  // empty: whatever arena they are in
  std::vector<Extent> extents;
  template <class A>
  void Fields(A& a) {
    a(operation, tag, extents);
  }
};
// Import and map these extents, a descriptor for each; those that are mapped are passed over. All
// or none of one request.
struct MapRequest {
  OperationId operation;
  std::string tag;
  std::vector<Extent> extents;
  template <class A>
  void Fields(A& a) {
    a(operation, tag, extents);
  }
};
// The operation is over. Work that needs what is asleep still has to wait, all other work goes on.
struct ResumeRequest {
  OperationId operation;
  AsleepTags asleep;
  template <class A>
  void Fields(A& a) {
    a(operation, asleep);
  }
};
// Obey nothing more of this operation. Answered once no step of it is running; the worker stays
// quiet if it was, until a Resume.
struct CancelRequest {
  OperationId operation;
  template <class A>
  void Fields(A& a) {
    a(operation);
  }
};
struct CancelReply {
  Status status;
  std::vector<ExtentId> mapped;  // everything that the worker maps, in all tags
  template <class A>
  void Fields(A& a) {
    a(status, mapped);
  }
};

}  // namespace torpor::wire

#endif  // TORPOR_LIB_WIRE_MESSAGES_H_
