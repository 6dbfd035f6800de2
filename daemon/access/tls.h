#ifndef TORPOR_DAEMON_ACCESS_TLS_H_
#define TORPOR_DAEMON_ACCESS_TLS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "lib/base/status.h"

namespace torpor::access {

// Files in PEM.
struct TlsFiles {
  std::string cert;  // the daemon's, and those between it and its authority
  std::string key;
  std::string client_ca;  // the authorities of clients
};

// What is in them.
struct TlsContents {
  std::string cert;
  std::string key;
  std::string client_ca;
};

// What a server could begin with: the files can be read, the key is that of the certificate, has no
// passphrase, and nobody but its owner and group can read it. INVALID_ARGUMENT BAD_TLS_FILE,
// KEY_FILE_EXPOSED, with "path".
Result<TlsContents> ReadTlsFiles(const TlsFiles& files);

// For a server whose clients must have a certificate of one of the authorities. Files that have
// changed are read anew within seconds, for connections that come then; nothing of them is checked.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles& files);

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_TLS_H_
