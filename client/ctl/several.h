#ifndef TORPOR_CLIENT_CTL_SEVERAL_H_
#define TORPOR_CLIENT_CTL_SEVERAL_H_

#include <string>
#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"

namespace torpor::ctl {

// Sends the command, a usage, sleep or wake, to all of `targets` at once, and prints what each
// answers, in their order. What one of them refuses is not undone at the others. A signal
// (BlockStopSignals) cancels all calls.
//   kDone: all did all of it; kFailed: none did anything; else kPartlyDone
ExitStatus RunOnSeveral(const Command& command, const std::vector<std::string>& targets);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_SEVERAL_H_
