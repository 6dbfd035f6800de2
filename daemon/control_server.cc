#include "daemon/control_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace torpor {
namespace {

constexpr char kServiceName[] = "torpor.v1.MemoryService";
constexpr int kMaxRequestBytes = 1 << 20;

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::Start(MemoryServiceImpl& service,
                                                            const Options& options) {
  static const bool plugins_ready = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)plugins_ready;

  std::unique_ptr<ControlServer> control(new ControlServer(service));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int socket_bound = 0;
  int port = 0;
  builder.AddListeningPort("unix:" + options.socket, grpc::InsecureServerCredentials(),
                           &socket_bound);
  if (options.listen.has_value()) {
    builder.AddListeningPort(options.listen->ToString(), grpc::InsecureServerCredentials(), &port);
  }
  builder.RegisterService(&service);
  // Nobody but the owner gets in before the mode is set.
  const mode_t umask_before = ::umask(0177);
  control->server_ = builder.BuildAndStart();
  ::umask(umask_before);
  if (control->server_ == nullptr || socket_bound == 0) {
    return Unavailable(
        "CANNOT_LISTEN",
        "cannot listen on " + options.socket +
            (options.listen.has_value() ? " and " + options.listen->ToString() : ""));
  }
  if (::chmod(options.socket.c_str(), options.socket_mode) != 0) {
    return ErrnoStatus(errno, "set the mode of " + options.socket);
  }
  control->listen_ = options.listen;
  if (control->listen_.has_value()) control->listen_->port = port;
  control->server_->GetHealthCheckService()->SetServingStatus(kServiceName, true);
  return control;
}

ControlServer::~ControlServer() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

void ControlServer::Shutdown(Duration patience, const std::function<void()>& hurry) {
  server_->GetHealthCheckService()->SetServingStatus(false);
  if (!service_.Drain(Clock::Real().Now() + patience)) {
    hurry();
    service_.Drain(Clock::Real().Now() + std::chrono::hours(24));
  }
  // For the last answers; an idle client would keep its connection for longer.
  server_->Shutdown(std::chrono::system_clock::now() + milliseconds(200));
}

}  // namespace torpor
