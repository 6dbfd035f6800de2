#ifndef TORPOR_CLIENT_COPY_H_
#define TORPOR_CLIENT_COPY_H_

#include "client/session.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor::client {

// Copies between host memory and one segment of `session`. Blocks until the copy has arrived,
// inside the work guard for the segment's tag (Session::WorkBegin, without a timeout).
//   INVALID_ARGUMENT BAD_SIZE: negative, or past the segment's end
//   NOT_FOUND UNKNOWN_ADDRESS, FAILED_PRECONDITION ASLEEP: nothing was copied
Status CopyToDevice(Session& session, DeviceAddress to, const void* from, Bytes size);
Status CopyFromDevice(Session& session, void* to, DeviceAddress from, Bytes size);

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_COPY_H_
