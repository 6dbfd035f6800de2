#ifndef TORPOR_LIB_BASE_PROCESS_H_
#define TORPOR_LIB_BASE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>

#include "lib/base/status.h"

namespace torpor {

// A process by its number and the time of its start (of /proc/PID/stat, in clock ticks since the
// machine's), which together are nobody else's.
struct ProcessId {
  pid_t pid = 0;
  uint64_t started = 0;
  friend bool operator==(const ProcessId& a, const ProcessId& b) {
    return a.pid == b.pid && a.started == b.started;
  }
};

// Also of one that has ended and was not waited for. NOT_FOUND UNKNOWN_PROCESS.
Result<ProcessId> FindProcess(pid_t pid);
// True if none of its threads runs any more. False where /proc does not tell.
bool HasEnded(const ProcessId& process);
// Whether `pid` is `ancestor`, or a process that it has started, and so on.
bool Descends(pid_t pid, pid_t ancestor);
// In which this process' numbers are meant; 0: unknown, or /proc is another one's.
uint64_t PidNamespace();

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_PROCESS_H_
