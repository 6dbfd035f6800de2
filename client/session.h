#ifndef TORPOR_CLIENT_SESSION_H_
#define TORPOR_CLIENT_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/pause_hook.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"
#include "lib/wire/messages.h"

namespace torpor::client {

struct SegmentInfo {
  DeviceAddress address;
  Bytes size{};  // as the daemon rounded it up
  std::string tag;
};

// A worker's session with the daemon of its device: allocates memory that the daemon owns, and lets
// the daemon take it away and give it back at the same addresses.
//
//   1. Connect says hello and starts two threads: the socket thread reads and never waits for
//      anything else, the operator thread obeys the daemon (client/operator.h). When the daemon
//      ends and its reply promised to know this worker again, the socket thread looks for the next
//      one during the grace time (client/reconnect.h).
//   2. Allocate asks the daemon, maps what it sends, and tells it so.
//   3. Work is submitted between WorkBegin and WorkEnd (client/work_guard.h), unless the worker
//      stated another way to be quieted.
//   4. A sleep, whoever asked for it, quiets the worker, unmaps, and resumes it; a wake maps again.
//
// While the daemon is away, resident memory stays mapped and usable, and work that needs nothing
// else goes on; requests wait, are put to the next daemon, and come out as if nothing had been.
// A segment that the next daemon does not have stays usable if it is mapped; otherwise work that
// needs its tag is DATA_LOSS SEGMENTS_LOST. When no daemon comes any more, everything that needs it
// is UNAVAILABLE DAEMON_GONE from then on. In a child that was forked from the session's process
// everything is FAILED_PRECONDITION FORKED, and destroying the session leaves it as it is.
//
// Thread-safe, except for destruction: nothing may use the session or its memory by then.
class Session {
 public:
  struct Options {
    std::string socket_path;
    std::string name;         // 1 to 63 of [A-Za-z0-9_.-]; empty: the daemon makes one
    std::string device_uuid;  // empty: whatever device the daemon has
    wire::Quiesce quiesce = wire::Quiesce::kNone;
    std::string reservation;  // id; empty: the free budget
  };
  // Makes the driver for the device that the daemon serves.
  using DriverFactory =
      std::function<Result<std::shared_ptr<Driver>>(const wire::HelloReply& hello)>;

  // Blocks for the daemon's answer, at most 30 seconds.
  //   UNAVAILABLE DAEMON_NOT_RUNNING, DEADLINE_EXCEEDED DAEMON_SILENT, what the daemon answers
  //   (FAILED_PRECONDITION WRONG_DEVICE, ...), or what the factory says
  static Result<std::unique_ptr<Session>> Connect(const Options& options,
                                                  const DriverFactory& factory);
  // Stops both threads, synchronizes the device, unmaps everything, then leaves the daemon. Waits
  // for a callback or driver call that is running. Not from a callback.
  ~Session();

  // FAILED_PRECONDITION FORKED in a child of the session's process.
  Status CheckProcess() const;
  const wire::HelloReply& hello() const;
  Driver& driver() const;
  // True inside a pause or resume callback.
  bool InCallback() const;

  // `size`: any positive number of bytes. Never waits for an operation, also not for one that puts
  // this worker to sleep.
  //   INVALID_ARGUMENT EMPTY_ALLOCATION (size 0), RESOURCE_EXHAUSTED, ...: nothing has changed, and
  //   the next call may well succeed
  Result<DeviceAddress> Allocate(const std::string& tag, Bytes size);

  // As Allocate, but waits in the daemon's queue for memory that is short. `timeout_ms`: below
  // 0 as long as it takes, 0 not at all. Not inside the work guard, which may keep out the sleep
  // that makes room.
  //   DEADLINE_EXCEEDED ALLOCATION_DEADLINE, DAEMON_SILENT (the daemon was away then);
  //   FAILED_PRECONDITION WORK_GUARD_HELD, CALLED_FROM_CALLBACK: at once, nothing was asked
  Result<DeviceAddress> AllocateWait(const std::string& tag, Bytes size, int64_t timeout_ms);

  // Gives a segment back, in whatever state it is. Never waits for an operation. If its memory is
  // to go away, synchronizes the device and unmaps it; while a thread is inside the work guard
  // (which may be capturing a graph) that is left to the last one that leaves. After an error of
  // the driver the address is gone all the same, and the memory follows when a later Free or
  // WorkEnd succeeds.
  //   NOT_FOUND UNKNOWN_ADDRESS: not the start of a segment
  Status Free(DeviceAddress address);

  // The segment that contains `address`. NOT_FOUND UNKNOWN_ADDRESS.
  Result<SegmentInfo> Find(DeviceAddress address) const;

  // See WorkGuard. `timeout` nothing: waits as long as it takes. In a callback that would be for
  // ever: FAILED_PRECONDITION CALLED_FROM_CALLBACK.
  Status WorkBegin(const std::vector<std::string>& tags, std::optional<Duration> timeout);
  Status WorkEnd();

  // Replaces the callbacks and tells the daemon that they quiet this worker; without `pause`, takes
  // that back. They run on the operator thread, without locks: `pause` before this worker is
  // quieted, unless it was the last that was called; `resume` when no tag is asleep any more.
  // `pause` must stop what submits work and return 0, or refuse with another number. Blocks while a
  // callback runs; in one it is FAILED_PRECONDITION CALLED_FROM_CALLBACK. After a failure there
  // are no callbacks.
  Status OnPause(PauseHook::Callbacks callbacks);
  Status SetQuiesce(wire::Quiesce quiesce);
  // How this worker is put to sleep by its own means, for those who ask the daemon in vain; empty:
  // nothing. INVALID_ARGUMENT BAD_ENDPOINT: not printable UTF-8 of at most 255 bytes.
  Status SetSleepEndpoint(const std::string& endpoint);

  // This worker's own sleep and wake; block until the daemon is done.
  //   FAILED_PRECONDITION WORK_GUARD_HELD, CALLED_FROM_CALLBACK: at once, nothing was asked
  //   DEADLINE_EXCEEDED DAEMON_SILENT: ten seconds after `timeout_ms`, if that is set; after
  //   `timeout_ms` while the daemon is away
  Result<wire::SleepReply> Sleep(const wire::Sleep& request);
  Result<wire::SleepReply> WakeUp(const wire::WakeUp& request);

  Result<wire::UsageReply> Usage();
  // What the worker's own allocator says about its memory, for the daemon to show.
  Status ReportUsage(Bytes live, Bytes reserved);

 private:
  class Impl;

  Session(std::unique_ptr<Impl> impl, uint64_t generation);

  std::unique_ptr<Impl> impl_;
  const uint64_t generation_;
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_SESSION_H_
