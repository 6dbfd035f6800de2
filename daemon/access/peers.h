#ifndef TORPOR_DAEMON_ACCESS_PEERS_H_
#define TORPOR_DAEMON_ACCESS_PEERS_H_

#include <map>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/net/unix_socket.h"

namespace torpor::access {

// Who the connections of the control socket are of, by the number of the descriptor that gRPC got
// for them and calls their peer by, "fd:7". gRPC closes a descriptor when the connection and all
// its calls are gone, and what is accepted next is noted before gRPC has it: so whoever is noted
// while a call is being handled is its caller. Thread-safe.
class Peers {
 public:
  // None: the system did not tell.
  void Put(int fd, std::optional<net::PeerCredentials> peer) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    entries_[fd] = {std::move(peer), std::nullopt};
  }
  // For a call.
  std::optional<net::PeerCredentials> Find(int fd) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = entries_.find(fd);
    if (found == entries_.end()) return std::nullopt;
    found->second.last_call = Clock::Real().Now();
    return found->second.peer;
  }
  // None: it has not called yet.
  std::optional<TimePoint> LastCall(int fd) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = entries_.find(fd);
    return found == entries_.end() ? std::nullopt : found->second.last_call;
  }

 private:
  struct Entry {
    std::optional<net::PeerCredentials> peer;
    std::optional<TimePoint> last_call;
  };
  mutable Mutex mutex_;
  // Those of connections that are gone stay until their number is used again.
  std::map<int, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_PEERS_H_
