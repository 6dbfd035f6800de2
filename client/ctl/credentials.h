#ifndef TORPOR_CLIENT_CTL_CREDENTIALS_H_
#define TORPOR_CLIENT_CTL_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "client/ctl/command.h"
#include "lib/base/status.h"

namespace torpor::ctl {

// For every connection of this process from now on: once, before the first. What `tls` leaves out
// comes from TORPOR_TLS_CA, TORPOR_TLS_CERT and TORPOR_TLS_KEY; if nothing is said there either,
// connections are without TLS. INVALID_ARGUMENT BAD_TLS_FILE, with "path" where one is meant.
Status UseTls(Tls tls);

// TLS for TCP, if UseTls has said so; a Unix socket's peer is known without. May add to
// `arguments`.
std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& target,
                                                         grpc::ChannelArguments& arguments);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_CREDENTIALS_H_
