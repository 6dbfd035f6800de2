#ifndef TORPOR_DAEMON_KEEPER_KEEPER_SERVER_H_
#define TORPOR_DAEMON_KEEPER_KEEPER_SERVER_H_

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/keeper/custody.h"
#include "daemon/keeper/service_manager.h"
#include "daemon/keeper/supervisor.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"

namespace torpor::keeper {

// The keeper's one thread: serves the daemon, starts it, starts it again when it has died, and ends
// with it when it has ended by itself or was told to. A daemon that it has not started may attach
// as long as the one that it has started did not, and is then taken over; if it cannot be watched
// (its number is of a pid namespace that is not seen from here) it counts as there for as long as
// it is connected.
class KeeperServer {
 public:
  struct Options {
    std::string socket;  // the daemon's way to here
    std::string journal;
    std::vector<std::string> command;  // of the daemon
  };
  // The service manager hears READY=1 when a daemon has attached, and WATCHDOG=1 as long as Run
  // goes round: also without a daemon, for a keeper has the more to keep then. Blocks SIGTERM,
  // SIGINT and SIGCHLD of this process, which Run takes.
  static Result<std::unique_ptr<KeeperServer>> Create(const Options& options,
                                                      ServiceManager manager = {});

  // Until a signal or the daemon's own end; gives the exit status.
  int Run();

 private:
  KeeperServer(const Options& options, std::unique_ptr<Journal> journal, UniqueFd listener,
               UniqueFd signals, ServiceManager manager);

  struct Connection {
    UniqueFd socket;
    net::PeerCredentials peer;
  };

  // When there is something to do though nothing comes in.
  std::optional<TimePoint> NextTime() const;
  void TellAttached();
  void StartDaemon();
  // Of the process that has attached; false if it cannot be watched.
  bool TakeOverAttached();
  // Whether it is the daemon that is watched, or what that has started.
  bool IsDaemons(const net::PeerCredentials& peer) const;
  // Whether nothing is kept that a daemon would have to clear up.
  bool Empty() const;
  Status MayAttach(const net::PeerCredentials& peer) const;
  void OnSignal();
  void OnConnection();
  // Takes it out of `waiting_`.
  void OnFirstQuestion(std::list<Connection>::iterator from);
  void OnQuestion();
  void OnDaemonEnd();

  const Options options_;
  Custody custody_;
  Supervisor supervisor_;
  ServiceManager manager_;
  const UniqueFd listener_;
  const UniqueFd signals_;
  std::list<Connection> waiting_;  // which have not asked anything yet
  Connection attached_;
  bool daemon_attached_ = false;  // the one that is watched, since it is
  std::optional<TimePoint> start_at_;
  bool stopping_ = false;
  std::optional<int> exit_;
};

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_KEEPER_SERVER_H_
