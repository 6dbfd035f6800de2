#ifndef TORPOR_CLIENT_CTL_COMMAND_H_
#define TORPOR_CLIENT_CTL_COMMAND_H_

#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/cli/flag_set.h"
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
  kDoctor,
  kHealth,
  kTop,
  kCompletion
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
  std::string service;             // health: its name
  Duration interval = seconds(1);  // top: between frames, at most
  bool once = false;               // top: one frame
  std::string shell;               // completion: bash, zsh or fish
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

// What the arguments of a verb are.
enum class Arguments { kNone, kWorkers, kReservation, kShell };

struct VerbDescription {
  std::string name;
  std::string about;
  Arguments arguments = Arguments::kNone;
  std::vector<FlagSet::Description> flags;  // all that go with it
};
std::vector<VerbDescription> DescribeVerbs();

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_COMMAND_H_
