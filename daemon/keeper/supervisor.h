#ifndef TORPOR_DAEMON_KEEPER_SUPERVISOR_H_
#define TORPOR_DAEMON_KEEPER_SUPERVISOR_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/process.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor::keeper {

// Starts the daemon, notices its end, and says when it is to be started again: at once after a
// daemon that has attached and lived for a second, later and later after one that does not. The
// daemon does not end with its keeper: another keeper can take it over. Not thread-safe.
class Supervisor {
 public:
  explicit Supervisor(std::vector<std::string> command) : command_(std::move(command)) {}

  // A daemon that this one has not started, if it is still there and none is running. It has
  // attached.
  bool TakeOver(const ProcessId& daemon);
  // Does not watch any longer what was taken over.
  void Forget() { pidfd_.Reset(); }
  // INTERNAL ERRNO_..., if there can be no process. What cannot be executed ends with 127.
  Status Start();

  // It has found its way to its keeper: what it needs for its start is there.
  void NoteAttached() { attached_ = true; }

  bool running() const { return pidfd_.valid(); }
  // False if it was taken over.
  bool started_here() const { return ours_; }
  const ProcessId& daemon() const { return daemon_; }
  // Readable when the daemon has ended; -1 while none is running.
  int pidfd() const { return pidfd_.get(); }

  struct End {
    std::optional<int> status;  // of waitpid; none for one that was taken over
    Duration pause{};           // before it is to be started again
  };
  // After `pidfd` has become readable.
  End Collect();
  // Passes it on, with kPassedOn. Nothing is done if it is not running.
  void Signal(int signal) const;

 private:
  const std::vector<std::string> command_;
  ProcessId daemon_;
  UniqueFd pidfd_;
  bool ours_ = false;
  bool attached_ = false;
  TimePoint since_;
  Duration pause_{};
};

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_SUPERVISOR_H_
