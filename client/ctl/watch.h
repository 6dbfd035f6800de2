#ifndef TORPOR_CLIENT_CTL_WATCH_H_
#define TORPOR_CLIENT_CTL_WATCH_H_

#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/daemons.h"

namespace torpor::ctl {

// Prints the daemons' events until a signal (BlockStopSignals) or the command's timeout, as they
// come; of several daemons with whose each is. One that ends is told on standard error, and the
// others go on.
//   kDone: until the end; kFailed: no daemon is left; else kPartlyDone
ExitStatus RunWatch(const Command& command, const std::vector<Daemon>& daemons);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_WATCH_H_
