#ifndef TORPOR_DAEMON_ACCESS_OWNER_H_
#define TORPOR_DAEMON_ACCESS_OWNER_H_

#include <sys/types.h>

#include <optional>
#include <string>

namespace torpor {

// Somebody who may touch nothing but what is its own. Who may touch everything has none.
struct Owner {
  std::string name;          // of its reservations, as "uid:1000" or "dns:jobs.example"
  std::optional<uid_t> uid;  // whose sessions are its own; none: no session is
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ACCESS_OWNER_H_
