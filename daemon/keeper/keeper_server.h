#ifndef TORPOR_DAEMON_KEEPER_KEEPER_SERVER_H_
#define TORPOR_DAEMON_KEEPER_KEEPER_SERVER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/keeper/custody.h"
#include "daemon/keeper/supervisor.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor::keeper {

// The keeper's one thread: serves the daemon, starts it, starts it again when it has died, and ends
// with it when it has ended by itself or was told to.
class KeeperServer {
 public:
  struct Options {
    std::string socket;  // the daemon's way to here
    std::string journal;
    std::vector<std::string> command;  // of the daemon
  };
  // Blocks SIGTERM, SIGINT and SIGCHLD of this process, which Run takes.
  static Result<std::unique_ptr<KeeperServer>> Create(const Options& options);

  // Until a signal or the daemon's own end; gives the exit status.
  int Run();

 private:
  KeeperServer(const Options& options, std::unique_ptr<Journal> journal, UniqueFd listener,
               UniqueFd signals);

  void StartDaemon();
  void OnSignal();
  void OnConnection();
  void OnQuestion();
  void OnDaemonEnd();

  const Options options_;
  Custody custody_;
  Supervisor supervisor_;
  const UniqueFd listener_;
  const UniqueFd signals_;
  UniqueFd connection_;
  std::optional<TimePoint> start_at_;
  bool stopping_ = false;
  std::optional<int> exit_;
};

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_KEEPER_SERVER_H_
