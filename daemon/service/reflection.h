#ifndef TORPOR_DAEMON_SERVICE_REFLECTION_H_
#define TORPOR_DAEMON_SERVICE_REFLECTION_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "daemon/access/gate.h"
#include "lib/base/status.h"

namespace torpor {

// Server reflection, grpc.reflection.v1 and v1alpha: the schema of what is linked in. gRPC's own
// gives each stream a thread, and lets everybody in. This one has none, at most kMaxStreams at a
// time (RESOURCE_EXHAUSTED TOO_MANY_STREAMS), and asks for a role, whichever (PERMISSION_DENIED
// ACCESS_DENIED). Thread-safe.
class Reflection {
 public:
  static constexpr int kMaxStreams = 256;

  // `gate`, if not null, must outlive it, and it the server. `services`: full names that are listed
  // besides its own.
  Reflection(access::Gate* gate, const std::vector<std::string>& services);
  ~Reflection();
  Reflection(const Reflection&) = delete;
  Reflection& operator=(const Reflection&) = delete;

  void RegisterAt(grpc::ServerBuilder& builder);

 private:
  template <typename Service, typename Request, typename Response>
  class Version;
  template <typename Request, typename Response>
  class Stream;

  // Takes one of the streams.
  Status Admit(const grpc::CallbackServerContext& context);
  template <typename Request, typename Response>
  void Answer(const Request& request, Response& response) const;

  access::Gate* const gate_;
  std::vector<std::string> services_;
  std::atomic<int> streams_ = 0;
  std::vector<std::unique_ptr<grpc::Service>> versions_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_REFLECTION_H_
