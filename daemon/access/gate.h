#ifndef TORPOR_DAEMON_ACCESS_GATE_H_
#define TORPOR_DAEMON_ACCESS_GATE_H_

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <utility>

#include "daemon/access/owner.h"
#include "daemon/access/peers.h"
#include "daemon/access/policy.h"
#include "daemon/log_limit.h"
#include "lib/base/status.h"
#include "lib/net/unix_socket.h"

namespace torpor::access {

// Tells who calls, and lets in. Without a policy everybody is an operator: whoever can reach a
// socket may do what it serves. Thread-safe.
class Gate {
 public:
  explicit Gate(std::optional<Policy> policy = std::nullopt) : policy_(std::move(policy)) {}

  // Of the control socket, whose listener fills it.
  Peers& peers() { return peers_; }

  // Whether a peer of the control socket has no role.
  bool IsStranger(const net::PeerCredentials& peer) const;
  // While the call is being handled.
  Caller CallerOf(const grpc::CallbackServerContext& context);
  // PERMISSION_DENIED ACCESS_DENIED, told to the log, but not more often than every few seconds of
  // one caller.
  Status Admit(const Caller& caller, Roles any_of, const std::string& action);
  // A worker that wants a session: whose reservations it may draw on besides operators', if that is
  // limited. Likewise.
  Result<std::optional<Owner>> AdmitWorker(const net::PeerCredentials& peer);

 private:
  Caller Judge(Identity identity) const;

  const std::optional<Policy> policy_;
  Peers peers_;
  log::Limit refusals_;
};

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_GATE_H_
