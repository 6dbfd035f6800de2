#ifndef TORPOR_DAEMON_ACCESS_POLICY_H_
#define TORPOR_DAEMON_ACCESS_POLICY_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/access/owner.h"
#include "lib/base/status.h"
#include "lib/net/unix_socket.h"

namespace torpor::access {

// Several are joined with |.
using Roles = unsigned;
constexpr Roles kNobody = 0;
constexpr Roles kOperator = 1;
constexpr Roles kWorker = 2;
constexpr Roles kReader = 4;
constexpr Roles kAnyRole = kOperator | kWorker | kReader;
// "OPERATOR or WORKER"
std::string NamesOf(Roles roles, const char* between);

// Who is at the other end of a connection, as far as the daemon knows by itself.
struct Identity {
  enum class Kind {
    kUnknown,
    kSocket,       // a Unix socket's peer
    kLoopback,     // TCP without TLS
    kCertificate,  // TCP with a verified client certificate
  };
  Kind kind = Kind::kUnknown;
  net::PeerCredentials peer;       // kSocket
  std::vector<std::string> names;  // kCertificate, as grants write them: "dns:a.example"
  // "uid 1000, gid 1000, groups 27, 100, pid 4711"; a few hundred bytes at most.
  std::string ToString() const;
  // Shorter, and the same for all connections of one: "uid 1000".
  std::string Name() const;
};

// What an identity may do.
struct Caller {
  Identity identity;
  Roles roles = kNobody;
  // What is its own, for one that is a worker and no operator. A certificate owns by the name that
  // the first grant of WORKER has found, and no sessions.
  std::optional<Owner> owner;

  bool Has(Roles any_of) const { return (roles & any_of) != 0; }
};

// PERMISSION_DENIED ACCESS_DENIED if `caller` has none of `any_of`: with what it is, what it has
// and what `action` needs.
Status Require(const Caller& caller, Roles any_of, const std::string& action);

// An access file, read. Thread-safe, as it never changes.
class Policy {
 public:
  // INVALID_ARGUMENT BAD_ACCESS_FILE with `path` and, where it can be said, `line`, or `errno` if
  // it cannot be opened; other errors of the system. Users and groups are looked up now.
  static Result<Policy> Load(const std::string& path);
  static Result<Policy> Parse(const std::string& text, const std::string& path);

  Caller Judge(Identity identity) const;
  // As the text of a file that grants the same, with the numbers of users and groups.
  std::string ToText() const;

 private:
  struct Grant {
    Roles roles = kNobody;
    std::vector<uid_t> users;
    std::vector<gid_t> groups;
    std::vector<std::string> certificates;
    bool loopback = false;
    // The certificate's name that it has found, "" for another kind of identity; null: it is of
    // somebody else.
    std::optional<std::string> Find(const Identity& identity) const;
  };
  std::vector<Grant> grants_;
};

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_POLICY_H_
