#ifndef TORPOR_CLIENT_CTL_PRINT_EVENT_H_
#define TORPOR_CLIENT_CTL_PRINT_EVENT_H_

#include <string>

#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {

// One line for people, "12:03:04.123 w-1 (model) op-3 sleep started: ...", in local time and
// without a line feed. Empty for a response without an event.
std::string PrintEvent(const v1::WatchResponse& response);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_PRINT_EVENT_H_
