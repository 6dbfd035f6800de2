#include "daemon/access/gate.h"

#include <grpc/grpc_security_constants.h>

#include <charconv>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace torpor::access {
namespace {

constexpr std::string_view kDescriptor = "fd:";

// N of "fd:N"; -1 for anything else.
int DescriptorOf(std::string_view peer) {
  if (peer.substr(0, kDescriptor.size()) != kDescriptor) return -1;
  int fd = -1;
  const auto read =
      std::from_chars(peer.data() + kDescriptor.size(), peer.data() + peer.size(), fd);
  return read.ec == std::errc() && read.ptr == peer.data() + peer.size() ? fd : -1;
}

std::vector<std::string> NamesOf(const grpc::AuthContext& context) {
  std::vector<std::string> names;
  const auto add = [&](const char* property, const char* kind) {
    for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
      names.push_back(kind + std::string(value.data(), value.size()));
    }
  };
  add(GRPC_PEER_DNS_PROPERTY_NAME, "dns:");
  add(GRPC_PEER_URI_PROPERTY_NAME, "uri:");
  // A certificate that says its names where they belong is not known by another one.
  if (context.FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME).empty()) {
    add(GRPC_X509_CN_PROPERTY_NAME, "cn:");
  }
  return names;
}

bool IsTls(const grpc::AuthContext& context) {
  for (const grpc::string_ref& type :
       context.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) {
    if (type == GRPC_TLS_TRANSPORT_SECURITY_TYPE || type == GRPC_SSL_TRANSPORT_SECURITY_TYPE) {
      return true;
    }
  }
  return false;
}

}  // namespace

Caller Gate::Judge(Identity identity) const {
  if (policy_.has_value()) return policy_->Judge(std::move(identity));
  Caller caller;
  caller.identity = std::move(identity);
  caller.roles = kOperator;
  return caller;
}

bool Gate::IsStranger(const net::PeerCredentials& peer) const {
  Identity identity;
  identity.kind = Identity::Kind::kSocket;
  identity.peer = peer;
  return !Judge(std::move(identity)).Has(kAnyRole);
}

Caller Gate::CallerOf(const grpc::CallbackServerContext& context) {
  Identity identity;
  const std::string peer = context.peer();
  if (const int fd = DescriptorOf(peer); fd >= 0) {
    std::optional<net::PeerCredentials> found = peers_.Find(fd);
    if (found.has_value()) {
      identity.kind = Identity::Kind::kSocket;
      identity.peer = *std::move(found);
    }
  } else if (const auto authenticated = context.auth_context();
             authenticated != nullptr && IsTls(*authenticated)) {
    identity.kind = Identity::Kind::kCertificate;
    identity.names = NamesOf(*authenticated);
  } else if (peer.compare(0, 5, "ipv4:") == 0 || peer.compare(0, 5, "ipv6:") == 0) {
    // Only a loopback address is served without TLS.
    identity.kind = Identity::Kind::kLoopback;
  }
  return Judge(std::move(identity));
}

Status Gate::Admit(const Caller& caller, Roles any_of, const std::string& action) {
  Status denied = Require(caller, any_of, action);
  if (denied.ok()) return denied;
  refusals_.Write(log::Level::kWarning, caller.identity.Name(), "refused for want of a role: {}",
                  denied);
  return denied;
}

Result<std::optional<Owner>> Gate::AdmitWorker(const net::PeerCredentials& peer) {
  Identity identity;
  identity.kind = Identity::Kind::kSocket;
  identity.peer = peer;
  const Caller caller = Judge(std::move(identity));
  TORPOR_RETURN_IF_ERROR(Admit(caller, kOperator | kWorker, "a worker's session"));
  return caller.owner;
}

}  // namespace torpor::access
