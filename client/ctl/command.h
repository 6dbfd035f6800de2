#ifndef TORPOR_CLIENT_CTL_COMMAND_H_
#define TORPOR_CLIENT_CTL_COMMAND_H_

#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {

enum class Verb {
  kHelp,
  kVersion,
  kUsage,
  kSleep,
  kWake,
  kReserve,
  kRenew,
  kRelease,
  kUpgrade,
  kWatch,
  kDoctor
};

// A watch goes on.
constexpr Duration kNoTimeout = Duration::max();

// Paths of PEM files; and the name that a daemon's certificate has, where it is not the target's.
struct Tls {
  std::string ca;
  std::string cert;
  std::string key;
  std::string name;
};

// What one command line asks for.
struct Command {
  Verb verb = Verb::kHelp;
  std::vector<std::string> targets;  // gRPC's names of the daemons; none: found by the next three
  std::string runtime_dir;
  std::vector<std::string> devices;
  bool all_devices = false;  // every daemon of the runtime directory
  bool json = false;
  Tls tls;
  Duration timeout = kNoTimeout;
  // The one of the verb is filled in.
  v1::SleepRequest sleep;
  v1::WakeUpRequest wake;
  v1::ReserveRequest reserve;
  v1::RenewRequest renew;
  v1::ReleaseRequest release;
  v1::WatchRequest watch;
};

// INVALID_ARGUMENT BAD_FLAG, BAD_COMMAND with a message of one line.
Result<Command> ParseCommand(const std::vector<std::string>& arguments);
std::string CommandHelp();

// Whether the answer tells daemons apart: it may be of several.
bool AsksSeveral(const Command& command);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_COMMAND_H_
