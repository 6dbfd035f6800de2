#ifndef TORPOR_DAEMON_SERVICE_GRPC_STATUS_H_
#define TORPOR_DAEMON_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "google/rpc/status.pb.h"
#include "lib/base/status.h"

namespace torpor {

// The translator from Status to the control plane. Text that is no UTF-8 gets '?' in place of the
// bytes that are not.

// OK, or code, message and one google.rpc.ErrorInfo: reason, domain "torpor", details as metadata.
google::rpc::Status ToRpcStatus(const Status& status);

// The same in an RPC's status, where all of it travels in HTTP trailers, of which clients take no
// more than 8 KiB: a long message or detail is cut and ends with "[truncated]"; details for which
// there is no room are left out, and the metadata then says "details_truncated": "true".
grpc::Status ToGrpcStatus(const Status& status);
// As much of `status` as that tells.
Status CutToTrailers(const Status& status);

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_GRPC_STATUS_H_
