#ifndef TORPOR_DAEMON_SERVICE_EVENT_CONVERSIONS_H_
#define TORPOR_DAEMON_SERVICE_EVENT_CONVERSIONS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "daemon/events/event.h"
#include "lib/base/status.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor {

// Between the control plane's messages and the event log.

// A place between two events of one start of a daemon.
struct EventCursor {
  std::string boot_id;
  uint64_t position = 0;  // the number of the event before it
};
std::string ToString(const EventCursor& cursor);

// What a watcher asked for.
struct WatchCommand {
  std::set<int> kinds;            // of v1::EventKind; none: all
  std::set<std::string> workers;  // ids or names; none: all, and events of no worker
  std::optional<EventCursor> cursor;

  bool Wants(const Event& event) const;
};

// INVALID_ARGUMENT BAD_EVENT_KIND, BAD_WORKER_NAME, BAD_CURSOR (not of the form that cursors have).
Result<WatchCommand> ToWatchCommand(const v1::WatchRequest& request);

// Time and event; not the cursor.
void FromEvent(const Event& event, v1::WatchResponse& response);

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_EVENT_CONVERSIONS_H_
