#ifndef TORPOR_CLIENT_CTL_CALL_H_
#define TORPOR_CLIENT_CTL_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "google/rpc/status.pb.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {

// Documented in the help.
enum ExitStatus { kDone = 0, kFailed = 1, kBadCommandLine = 2, kPartlyDone = 3 };

// To the daemon with gRPC's name `target`; connects with the first call.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target);
// On a connection that is there, non-blocking, to a daemon's control socket; ends with it.
std::shared_ptr<grpc::Channel> ChannelOn(UniqueFd connection);
std::unique_ptr<v1::MemoryService::Stub> Connect(const std::string& target);

void SetTimeout(grpc::ClientContext& context, Duration timeout);

// What the daemon at `target` sent as the error's details. If it sent none, what gRPC says:
//   UNAVAILABLE DAEMON_UNREACHABLE, DEADLINE_EXCEEDED CALL_DEADLINE, CANCELLED CALL_CANCELLED, else
//   CALL_FAILED: with "target"
google::rpc::Status ToRpcStatus(const grpc::Status& status, const std::string& target);
google::rpc::Status ToRpcStatus(const Status& status);
// What ToRpcStatus makes the same of.
grpc::Status ToGrpcStatus(const Status& status);

// Prints it on standard error: for people, or as JSON.
void PrintFailure(const google::rpc::Status& status, bool json);

// Prints the selected workers on standard error, once nothing moves them.
void TellWhatBecameOf(v1::MemoryService::Stub& stub, const v1::Selector& selector);

inline bool SomeFailed(const v1::UsageResponse&) { return false; }
template <typename Response>
bool SomeFailed(const Response& response) {
  for (const v1::WorkerResult& result : response.workers()) {
    if (result.status().code() != 0) return true;
  }
  return false;
}

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_CALL_H_
