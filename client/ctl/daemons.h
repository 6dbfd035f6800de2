#ifndef TORPOR_CLIENT_CTL_DAEMONS_H_
#define TORPOR_CLIENT_CTL_DAEMONS_H_

#include <string>
#include <vector>

#include "client/ctl/command.h"
#include "lib/base/status.h"

namespace torpor::ctl {

// A daemon that a command asks.
struct Daemon {
  std::string name;    // for people: its device, or its address
  std::string device;  // empty where the command line says its address
  std::string target;  // gRPC's name
  // UNAVAILABLE DAEMON_NOT_RUNNING: nobody listens there.
  Status status;
};

// The folders in which daemons are looked for, one after the other until there are any:
// `runtime_dir`, else $TORPOR_RUNTIME_DIR, else /run/torpor, for others than root after
// $XDG_RUNTIME_DIR/torpor.
std::vector<std::string> RuntimeDirs(const std::string& runtime_dir, bool root);

// Whom to ask, at least one, in the order of the command line or else of the names. Of a command
// that asks several, those that are not running are among them, as long as one is. One that is
// named twice, also by two names of its socket, is there once.
//   UNAVAILABLE DAEMON_NOT_RUNNING, FAILED_PRECONDITION AMBIGUOUS_DAEMON: with "candidates"
Result<std::vector<Daemon>> FindDaemons(const Command& command);

// The path of the Unix socket that gRPC's name `target` means; empty where it means none.
std::string SocketPathOf(const std::string& target);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_DAEMONS_H_
