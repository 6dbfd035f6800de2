#ifndef TORPOR_CLIENT_CTL_HEALTH_H_
#define TORPOR_CLIENT_CTL_HEALTH_H_

#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/daemons.h"

namespace torpor::ctl {

// Asks grpc.health.v1 of all `daemons` at once whether they serve, prints that, and of those that
// do not, why. A signal (BlockStopSignals) cancels the calls.
//   kDone: all serve; kFailed: none does; else kPartlyDone
ExitStatus RunHealth(const Command& command, const std::vector<Daemon>& daemons);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_HEALTH_H_
