#ifndef TORPOR_DAEMON_ACCESS_LAST_POLICY_H_
#define TORPOR_DAEMON_ACCESS_LAST_POLICY_H_

#include <optional>
#include <string>
#include <utility>

#include "daemon/access/policy.h"
#include "lib/base/status.h"

namespace torpor::access {

// The policy that a daemon goes by, kept in a file of its own for the daemon after it: that one can
// let workers come back though the access file is wrong by then. Users and groups are kept as the
// numbers they were. Not thread-safe.
class LastPolicy {
 public:
  // `path`: of the file, in a folder that others cannot write to. `access_file`: of which it is,
  // as --access says it; what is kept of another one is not used.
  LastPolicy(std::string path, std::string access_file)
      : path_(std::move(path)), access_file_(std::move(access_file)) {}

  // What to go by: `loaded`, which is kept from now on, if it is good; otherwise what is kept, and
  // the log says so; `loaded` if nothing is.
  Result<std::optional<Policy>> Choose(Result<std::optional<Policy>> loaded) const;
  // When nothing is left that a daemon after this one could let come back.
  void Forget() const;

 private:
  Status Keep(const Policy& policy) const;
  // None as well where it is another user's, or open to others. Errors of the system;
  // INVALID_ARGUMENT BAD_ACCESS_FILE.
  Result<std::optional<Policy>> Load() const;
  std::string Heading() const;

  const std::string path_;
  const std::string access_file_;
};

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_LAST_POLICY_H_
