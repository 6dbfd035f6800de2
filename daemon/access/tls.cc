#include "daemon/access/tls.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/log.h"
#include "lib/base/unique_fd.h"

namespace torpor::access {
namespace {

constexpr unsigned kLookSeconds = 1;
constexpr off_t kLongestFile = 1 << 20;

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

template <typename Object, void (*kFree)(Object*)>
struct Freed {
  void operator()(Object* object) const { kFree(object); }
};
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX, SSL_CTX_free>>;

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Instead of a question at the terminal, if there is one.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writes*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Certificate NextCertificate(BIO* pem) {
  bool asked = false;
  return Certificate(PEM_read_bio_X509(pem, nullptr, NoPassphrase, &asked));
}

Result<std::string> ReadPem(const std::string& path, bool secret) {
  const auto failed = [&] {
    return BadFile(path, std::string("cannot be read: ") + std::strerror(errno));
  };
  ERR_clear_error();
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.valid() || ::fstat(file.get(), &about) != 0) return failed();
  if (!S_ISREG(about.st_mode) || about.st_size > kLongestFile) {
    return BadFile(path, "is no file of at most 1 MiB");
  }
  if (secret && (about.st_mode & S_IRWXO) != 0) {
    return InvalidArgument("KEY_FILE_EXPOSED",
                           "everybody may open the private key " + path + ": chmod o= it")
        .With("path", path)
        .With("mode", about.st_mode & 07777);
  }
  std::string text(static_cast<size_t>(about.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t part = ::read(file.get(), text.data() + size, text.size() - size);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return failed();
    if (part == 0) break;
    size += static_cast<size_t>(part);
  }
  text.resize(size);
  return text;
}

Status Check(const TlsContents& contents, const TlsFiles& files) {
  const Context context(SSL_CTX_new(TLS_server_method()));
  ERR_clear_error();
  if (context == nullptr) return BadFile(files.cert, "cannot be used");
  const Bio certificates = Open(contents.cert);
  const Certificate own = NextCertificate(certificates.get());
  if (own == nullptr || SSL_CTX_use_certificate(context.get(), own.get()) != 1) {
    return BadFile(files.cert, "has no certificate in PEM");
  }
  bool encrypted = false;
  const Bio key_pem = Open(contents.key);
  const Key key(PEM_read_bio_PrivateKey(key_pem.get(), nullptr, NoPassphrase, &encrypted));
  if (encrypted) {
    ERR_clear_error();
    return BadFile(files.key,
                   "is encrypted, and a daemon has nobody to ask for the passphrase: keep the key "
                   "without one, as `openssl pkey -in " +
                       files.key + "` writes it, in a file of mode 0600");
  }
  if (key == nullptr || SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return BadFile(files.key, "is not the private key of " + files.cert);
  }
  if (NextCertificate(Open(contents.client_ca).get()) == nullptr) {
    return BadFile(files.client_ca, "has no certificate of an authority in PEM");
  }
  ERR_clear_error();
  if (X509_cmp_current_time(X509_get0_notAfter(own.get())) < 0) {
    log::Warning("the certificate {} has expired", files.cert);
  }
  return Status::Ok();
}

}  // namespace

Result<TlsContents> ReadTlsFiles(const TlsFiles& files) {
  TlsContents contents;
  TORPOR_ASSIGN_OR_RETURN(contents.cert, ReadPem(files.cert, false));
  TORPOR_ASSIGN_OR_RETURN(contents.key, ReadPem(files.key, true));
  TORPOR_ASSIGN_OR_RETURN(contents.client_ca, ReadPem(files.client_ca, false));
  TORPOR_RETURN_IF_ERROR(Check(contents, files));
  return contents;
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
