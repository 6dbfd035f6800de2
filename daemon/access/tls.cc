#include "daemon/access/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "daemon/log.h"

namespace torpor::access {
namespace {

constexpr unsigned kLookSeconds = 1;

Status BadFile(const std::string& path, const std::string& what) {
  std::string why;
  if (const unsigned long error = ERR_get_error(); error != 0) {
    char text[256];
    ERR_error_string_n(error, text, sizeof text);
    why = std::string(": ") + text;
  }
  ERR_clear_error();
  return InvalidArgument("BAD_TLS_FILE", path + " " + what + why).With("path", path);
}

// OpenSSL says "system library" and no more.
Status CheckReadable(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) {
    return BadFile(path, std::string("cannot be read: ") + std::strerror(errno));
  }
  return Status::Ok();
}

}  // namespace

Status CheckTlsFiles(const TlsFiles& files) {
  for (const std::string& path : {files.cert, files.key, files.client_ca}) {
    TORPOR_RETURN_IF_ERROR(CheckReadable(path));
  }
  struct stat about {};
  if (::stat(files.key.c_str(), &about) == 0 && (about.st_mode & S_IRWXO) != 0) {
    return InvalidArgument("KEY_FILE_EXPOSED",
                           "everybody may open the private key " + files.key + ": chmod o= it")
        .With("path", files.key)
        .With("mode", about.st_mode & 07777);
  }
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_server_method()),
                                                             SSL_CTX_free);
  ERR_clear_error();
  if (context == nullptr) return BadFile(files.cert, "cannot be used");
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str()) != 1) {
    return BadFile(files.cert, "has no certificate in PEM");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return BadFile(files.key, "is not the private key of " + files.cert);
  }
  if (SSL_CTX_load_verify_locations(context.get(), files.client_ca.c_str(), nullptr) != 1) {
    return BadFile(files.client_ca, "has no certificate of an authority in PEM");
  }
  const X509* const certificate = SSL_CTX_get0_certificate(context.get());
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    log::Warning("the certificate {} has expired", files.cert);
  }
  return Status::Ok();
}

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles& files) {
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key, files.cert, files.client_ca, kLookSeconds));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace torpor::access
