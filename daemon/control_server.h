#ifndef TORPOR_DAEMON_CONTROL_SERVER_H_
#define TORPOR_DAEMON_CONTROL_SERVER_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "daemon/access/control_listener.h"
#include "daemon/access/gate.h"
#include "daemon/access/tls.h"
#include "daemon/flags.h"
#include "daemon/service/health_service.h"
#include "daemon/service/memory_service.h"
#include "daemon/service/reflection.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace torpor {

// The gRPC server of the control plane on a Unix socket and, if asked, on TCP, with reflection and
// grpc.health.v1. Its methods are for one thread.
class ControlServer {
 public:
  // The health service's name for whether what workers have outlives the daemon.
  static constexpr char kKeeperName[] = "torpor.keeper";
  // Its name for whether the daemon can be left alone: another start would not help.
  static constexpr char kAliveName[] = "torpor.alive";

  struct Options {
    std::string socket;  // path; replaced if there is one: callers hold the lock of its folder
    mode_t socket_mode = 0660;
    std::optional<ListenAddress> listen;
    std::optional<access::TlsFiles> tls = {};  // on TCP; none: it is a loopback address
    std::optional<gid_t> socket_group = {};    // none: the process's
    size_t connections = 0;                    // ControlListener::Options
  };

  // Listens on return, NOT_SERVING. `service` and `gate`, whose peers are told of whom the
  // connections of the Unix socket are, must outlive it. UNAVAILABLE CANNOT_LISTEN; errors of
  // ControlListener.
  static Result<std::unique_ptr<ControlServer>> Start(MemoryServiceImpl& service,
                                                      access::Gate& gate, const Options& options);
  // Shutdown without patience.
  ~ControlServer();

  // With the port that was taken.
  const std::optional<ListenAddress>& listen() const { return listen_; }

  // What grpc.health.v1 says of kKeeperName. Thread-safe.
  void SetProtected(bool is_protected);
  // What it says of the server as a whole, of MemoryService, and of kAliveName. Thread-safe.
  void SetHealth(bool serving, bool alive);

  // Reports NOT_SERVING, refuses new calls, and waits for those under way; if they are not done in
  // `patience`, calls `hurry`, which has to make them end, and waits on. Then closes all
  // connections.
  void Shutdown(Duration patience, const std::function<void()>& hurry);

 private:
  ControlServer(MemoryServiceImpl& service, access::Gate& gate);
  // Cancels what is still under way after `patience`, and ends all connections.
  void Close(Duration patience);

  MemoryServiceImpl& service_;
  HealthService health_;
  Reflection reflection_;
  std::unique_ptr<access::ControlListener> listener_;  // gives server_ its connections
  std::unique_ptr<grpc::Server> server_;
  std::optional<ListenAddress> listen_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_CONTROL_SERVER_H_
