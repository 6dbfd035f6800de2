#ifndef TORPOR_TESTS_WORKER_RAW_FRAMES_H_
#define TORPOR_TESTS_WORKER_RAW_FRAMES_H_

#include <string>

#include "lib/base/units.h"

namespace torpor {

// Connects to the worker socket at `path` by hand, says hello first if `after_hello`, sends one bad
// packet and tells in a line what the daemon did: "ok closed", "ok refused REASON" (in place of an
// answer to hello), "ok answered TYPE", "ok silent" (for two seconds), or "error ...". `kind` is
// one of
//   empty short long magic version length huge fds fewer_fds unsealed payload type answer
std::string SendBadFrame(const std::string& path, const std::string& kind, bool after_hello);

// Allocates `size` on a connection of its own, ends the connection, and keeps the descriptors of
// the memory until this process ends: "ok COUNT", or "error ...".
std::string HoldMemory(const std::string& path, Bytes size);

}  // namespace torpor

#endif  // TORPOR_TESTS_WORKER_RAW_FRAMES_H_
