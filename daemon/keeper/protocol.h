#ifndef TORPOR_DAEMON_KEEPER_PROTOCOL_H_
#define TORPOR_DAEMON_KEEPER_PROTOCOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/record.h"
#include "lib/base/status.h"

namespace torpor::keeper {

// What daemon and keeper say to each other: frames of lib/net, one question at a time and its
// answer, asked by the daemon. Another number whenever a message changes, but in every protocol
// Attach begins with the number, and its answer with a status. Where the frames are of another
// version, the keeper answers whatever it is by an empty one of its own.
constexpr uint32_t kProtocol = 3;

// A daemon that ends with it is followed by another one at once, of whatever the program is by
// then.
constexpr int kHandOverStatus = 75;

// The value, as of sigqueue(3), of signals that the keeper passes on: the daemon may have got them
// by itself as well.
constexpr int kPassedOn = 0x70617373;

enum class Type : uint16_t {
  kAttach = 1,     // Attach -> AttachReply; the first question
  kFetch = 3,      // Fetch -> FetchReply, with the descriptors of `extents`
  kPool = 5,       // {} -> PoolReply, with the pool's descriptor if there is one
  kHold = 7,       // ExtentHeld and its descriptor -> Reply
  kDrop = 9,       // ExtentDropped -> Reply: the descriptor is closed, whatever that says
  kRecord = 11,    // Record -> Reply
  kHoldPool = 13,  // PoolHeld and its descriptor -> Reply
  kReplace = 15,   // Replace -> Reply: with the last page what the keeper had is forgotten
};
constexpr uint16_t AnswerTo(uint16_t type) { return static_cast<uint16_t>(type + 1); }

struct Attach {
  uint32_t protocol = kProtocol;
  std::string device;
  uint64_t skip = 0;  // records that an answer before had already
  template <class A>
  void Fields(A& a) {
    a(protocol, device, skip);
  }
};
struct AttachReply {
  Status status;
  std::vector<std::string> records;  // EncodeRecord; a page
  bool more = false;                 // to be asked for with `skip`
  uint32_t starts = 0;               // of daemons by this keeper; 0: it has started none
  template <class A>
  void Fields(A& a) {
    a(status, records, more, starts);
  }
};
struct Fetch {
  std::vector<ExtentId> extents;  // at most as many as a frame takes descriptors
  template <class A>
  void Fields(A& a) {
    a(extents);
  }
};
struct FetchReply {
  Status status;
  std::vector<ExtentId> extents;  // of those asked for, the ones that are there
  template <class A>
  void Fields(A& a) {
    a(status, extents);
  }
};
struct PoolReply {
  Status status;
  PoolHeld pool;
  template <class A>
  void Fields(A& a) {
    a(status, pool);
  }
};
struct Record {
  std::vector<std::string> records;  // EncodeRecord; all or none
  template <class A>
  void Fields(A& a) {
    a(records);
  }
};
struct Replace {
  std::vector<std::string> records;  // a page
  bool more = false;                 // the next Replace goes on
  template <class A>
  void Fields(A& a) {
    a(records, more);
  }
};
struct Reply {
  Status status;
  template <class A>
  void Fields(A& a) {
    a(status);
  }
};

// As many of `records`, from number `next` on, as one message takes, encoded; moves `next` on.
std::vector<std::string> TakePage(const std::vector<JournalRecord>& records, size_t& next);
// Errors as DecodeRecord.
Result<std::vector<JournalRecord>> DecodeAll(const std::vector<std::string>& records);

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_PROTOCOL_H_
