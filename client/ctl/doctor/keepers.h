#ifndef TORPOR_CLIENT_CTL_DOCTOR_KEEPERS_H_
#define TORPOR_CLIENT_CTL_DOCTOR_KEEPERS_H_

#include <string>
#include <vector>

#include "client/ctl/doctor/node.h"

namespace torpor::ctl::doctor {

// The pids of the keepers that run and may be that of the daemon of `device` under `runtime_dir`:
// those that say so in their command line or environment, or, if none does, those that do not say.
std::vector<std::string> KeepersOf(const Node& node, const std::string& device,
                                   const std::string& runtime_dir);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_KEEPERS_H_
