#ifndef TORPOR_CLIENT_CTL_SEVERAL_H_
#define TORPOR_CLIENT_CTL_SEVERAL_H_

#include <string>
#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/daemons.h"

namespace torpor::ctl {

// Sends the command, a usage, sleep or wake, to all of `daemons` at once, and prints one table, or
// one document, of what they answer, in their order. What one of them refuses is not undone at the
// others. A signal (BlockStopSignals) cancels all calls.
//   kDone: all did all of it; kFailed: none did anything; else kPartlyDone
ExitStatus RunOnSeveral(const Command& command, const std::vector<Daemon>& daemons);

// The heading of the column with the daemons' names.
std::string HeadingOf(const std::vector<Daemon>& daemons);

// {"device": "...", "target": "...", "KEY": VALUE}, on one line.
std::string JsonOf(const Daemon& daemon, const std::string& key, const std::string& value);

// Those lines as one document.
std::string JsonArray(const std::vector<std::string>& items);

// Prints what a daemon has refused on standard error.
void PrintFailureOf(const Daemon& daemon, const google::rpc::Status& status);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_SEVERAL_H_
