#ifndef TORPOR_DAEMON_SERVICE_HEALTH_SERVICE_H_
#define TORPOR_DAEMON_SERVICE_HEALTH_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <set>
#include <string>

#include "daemon/access/gate.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// grpc.health.v1, for everybody. gRPC's own takes any number of streams; this one kMaxStreams, of
// which callers without a role have kStreamsOfStrangers (RESOURCE_EXHAUSTED TOO_MANY_STREAMS). A
// stream is told the last that is known when it is slower than what happens. Thread-safe.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  static constexpr int kMaxStreams = 1024;
  static constexpr int kStreamsOfStrangers = 64;

  // `gate`, if not null, must outlive it, and it the server.
  explicit HealthService(access::Gate* gate) : gate_(gate) {}
  ~HealthService() override;

  // Tells the streams of `service` too.
  void Set(const std::string& service, bool serving) EXCLUDES(mutex_);
  // Nothing that was ever set serves any more, for good.
  void EndServing() EXCLUDES(mutex_);

  // NOT_FOUND for a service that was never set, as the protocol says.
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override
      EXCLUDES(mutex_);
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override EXCLUDES(mutex_);

 private:
  using Serving = grpc::health::v1::HealthCheckResponse;
  class Stream;

  Status Admit(bool stranger) REQUIRES(mutex_);
  // SERVICE_UNKNOWN for one that was never set.
  Serving::ServingStatus Of(const std::string& service) const REQUIRES(mutex_);
  // These only start what gRPC then does: it calls back later.
  void Tell(Stream& stream) REQUIRES(mutex_);
  void TellAll() REQUIRES(mutex_);
  void End(Stream& stream) REQUIRES(mutex_);

  access::Gate* const gate_;
  Mutex mutex_;
  std::map<std::string, bool> serving_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  std::set<Stream*> streams_ GUARDED_BY(mutex_);
  int of_strangers_ GUARDED_BY(mutex_) = 0;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_HEALTH_SERVICE_H_
