#ifndef TORPOR_DAEMON_KEEPER_SERVICE_MANAGER_H_
#define TORPOR_DAEMON_KEEPER_SERVICE_MANAGER_H_

#include <optional>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/unique_fd.h"

namespace torpor::keeper {

// The service manager that has started this process, if it is to be told how the process fares: by
// the protocol of sd_notify(3), of which it needs a datagram for each message and no library.
// Messages that cannot be sent are dropped. Not thread-safe.
class ServiceManager {
 public:
  // Of NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which it removes: they are not meant for the
  // processes that this one starts.
  static ServiceManager FromEnvironment();
  // None: tells nobody.
  ServiceManager() = default;

  // Lines of NAME=VALUE, as "READY=1".
  void Tell(const std::string& lines) const;
  // "STATUS=", which people read. Unlike Tell it says nothing twice.
  void TellStatus(const std::string& status);

  // If it wants to hear WATCHDOG=1 from time to time: when that is due. Never later than half of
  // what it allows.
  const std::optional<TimePoint>& watchdog_due() const { return due_; }
  // Sends it, if it is due.
  void TellAlive(TimePoint now);

 private:
  std::string address_;  // empty: none; a zero byte at its beginning: an abstract one
  UniqueFd socket_;
  std::optional<Duration> interval_;
  std::optional<TimePoint> due_;
  std::string status_;
};

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_SERVICE_MANAGER_H_
