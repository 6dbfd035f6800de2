#ifndef TORPOR_CLIENT_CTL_TOP_H_
#define TORPOR_CLIENT_CTL_TOP_H_

#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/daemons.h"

namespace torpor::ctl {

// Shows the daemons on the terminal until q, a signal or the command's timeout, and leaves the
// terminal as it was. Once, or where standard output is no terminal: prints one frame. To be called
// before there is any thread.
//   kDone, also where no daemon answers; of one frame: kFailed: none has answered; kPartlyDone:
//   some
ExitStatus RunTop(const Command& command, const std::vector<Daemon>& daemons);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_TOP_H_
