#include "client/ctl/credentials.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

namespace torpor::ctl {
namespace {

struct Pem {
  grpc::SslCredentialsOptions options;
  std::string name;
};

// Set once, before there are threads.
std::optional<Pem>& Used() {
  static auto& used = *new std::optional<Pem>();
  return used;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file.good()) text << file.rdbuf();
  if (!file.good() || text.str().find("-----BEGIN ") == std::string::npos) {
    return InvalidArgument("BAD_TLS_FILE", path + (file.is_open() ? " is no PEM" : ": ") +
                                               (file.is_open() ? "" : std::strerror(errno)))
        .With("path", path);
  }
  return text.str();
}

}  // namespace

Status UseTls(Tls tls) {
  if (tls.ca.empty()) tls.ca = Environment("TORPOR_TLS_CA");
  if (tls.cert.empty()) tls.cert = Environment("TORPOR_TLS_CERT");
  if (tls.key.empty()) tls.key = Environment("TORPOR_TLS_KEY");
  if (tls.ca.empty() && tls.cert.empty() && tls.key.empty()) {
    if (tls.name.empty()) return Status::Ok();
    return InvalidArgument("BAD_TLS_FILE", "--tls-name needs --tls-ca, --tls-cert and --tls-key");
  }
  if (tls.ca.empty() || tls.cert.empty() || tls.key.empty()) {
    return InvalidArgument(
        "BAD_TLS_FILE",
        "--tls-ca, --tls-cert and --tls-key (TORPOR_TLS_CA, TORPOR_TLS_CERT, TORPOR_TLS_KEY) are "
        "needed together");
  }
  Pem pem;
  TORPOR_ASSIGN_OR_RETURN(pem.options.pem_root_certs, ReadPem(tls.ca));
  TORPOR_ASSIGN_OR_RETURN(pem.options.pem_cert_chain, ReadPem(tls.cert));
  TORPOR_ASSIGN_OR_RETURN(pem.options.pem_private_key, ReadPem(tls.key));
  pem.name = tls.name;
  Used() = std::move(pem);
  return Status::Ok();
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& target,
                                                         grpc::ChannelArguments& arguments) {
  if (!Used().has_value() || target.compare(0, 5, "unix:") == 0) {
    return grpc::InsecureChannelCredentials();
  }
  if (!Used()->name.empty()) arguments.SetSslTargetNameOverride(Used()->name);
  return grpc::SslCredentials(Used()->options);
}

}  // namespace torpor::ctl
