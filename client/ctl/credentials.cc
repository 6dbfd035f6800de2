#include "client/ctl/credentials.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

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

Status BadFile(const std::string& path, const std::string& what) {
  ERR_clear_error();
  return InvalidArgument("BAD_TLS_FILE", path + " " + what).With("path", path);
}

template <typename Object, void (*kFree)(Object*)>
struct Freed {
  void operator()(Object* object) const { kFree(object); }
};
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Instead of a question at the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writes*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Certificate FirstCertificate(const std::string& pem) {
  bool asked = false;
  return Certificate(PEM_read_bio_X509(Open(pem).get(), nullptr, NoPassphrase, &asked));
}

// gRPC says nothing of files that it cannot use, only that there are no addresses.
Status CheckFiles(const grpc::SslCredentialsOptions& options, const Tls& files) {
  if (FirstCertificate(options.pem_root_certs) == nullptr) {
    return BadFile(files.ca, "has no certificate of an authority in PEM");
  }
  const Certificate own = FirstCertificate(options.pem_cert_chain);
  if (own == nullptr) return BadFile(files.cert, "has no certificate in PEM");
  bool encrypted = false;
  const Key key(PEM_read_bio_PrivateKey(Open(options.pem_private_key).get(), nullptr, NoPassphrase,
                                        &encrypted));
  if (encrypted) {
    return BadFile(files.key, "has a passphrase: write it without, `openssl pkey -in " + files.key +
                                  "`, in a file of mode 0600");
  }
  if (key == nullptr || X509_check_private_key(own.get(), key.get()) != 1) {
    return BadFile(files.key, "is not the private key of " + files.cert);
  }
  ERR_clear_error();
  return Status::Ok();
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
  TORPOR_RETURN_IF_ERROR(CheckFiles(pem.options, tls));
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
