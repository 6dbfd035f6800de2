#ifndef TORPOR_DAEMON_STOPPING_H_
#define TORPOR_DAEMON_STOPPING_H_

#include "lib/base/status.h"

namespace torpor {

// What whoever still wants something of a daemon that ends is told.
inline Status DaemonStopping() { return Unavailable("DAEMON_STOPPING", "the daemon is stopping"); }

}  // namespace torpor

#endif  // TORPOR_DAEMON_STOPPING_H_
