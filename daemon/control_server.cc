#include "daemon/control_server.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "daemon/log_limit.h"

namespace torpor {
namespace {

constexpr char kServiceName[] = "torpor.v1.MemoryService";
constexpr int kMaxRequestBytes = 1 << 20;
constexpr int kHandshakeTimeoutMs = 10'000;
// More than all calls that may wait for memory: what is beyond that waits at the client.
constexpr int kStreamsOfConnection = 2048;
constexpr Duration kForLastAnswers = milliseconds(200);
constexpr Duration kForCancelledCalls = milliseconds(300);

// gRPC tells of each handshake that fails: a stranger could fill the disk.
void TellOfGrpc(gpr_log_func_args* told) {
  // Never destroyed: threads of gRPC may end after main.
  static auto* const limit = new log::Limit;
  limit->Write(log::Level::kWarning, told->file + (':' + std::to_string(told->line)), "gRPC: {}",
               told->message);
}

bool IsOf(int fd, int port) {
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) return false;
  const auto of = local.ss_family == AF_INET6
                      ? reinterpret_cast<const sockaddr_in6&>(local).sin6_port
                      : reinterpret_cast<const sockaddr_in&>(local).sin_port;
  return (local.ss_family == AF_INET6 || local.ss_family == AF_INET) && ntohs(of) == port;
}

void EndTcpConnections(int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (IsOf(fd, port)) ::shutdown(fd, SHUT_RDWR);
  }
}

}  // namespace

ControlServer::ControlServer(MemoryServiceImpl& service, access::Gate& gate)
    : service_(service),
      health_(&gate),
      reflection_(&gate, {kServiceName, grpc::health::v1::Health::service_full_name()}) {}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(MemoryServiceImpl& service,
                                                            access::Gate& gate,
                                                            const Options& options) {
  static const bool plugins_ready = [] {
    ::gpr_set_log_function(TellOfGrpc);
    grpc::EnableDefaultHealthCheckService(false);
    // For good: its end would wait up to ten seconds for a poller of its own.
    ::grpc_init();
    return true;
  }();
  (void)plugins_ready;

  std::unique_ptr<ControlServer> control(new ControlServer(service, gate));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  int port = 0;
  if (options.listen.has_value()) {
    builder.AddListeningPort(options.listen->ToString(),
                             options.tls.has_value() ? access::MakeTlsCredentials(*options.tls)
                                                     : grpc::InsecureServerCredentials(),
                             &port);
  }
  builder.RegisterService(&service);
  builder.RegisterService(&control->health_);
  control->reflection_.RegisterAt(builder);
  control->server_ = builder.BuildAndStart();
  if (control->server_ == nullptr || (options.listen.has_value() && port == 0)) {
    return Unavailable("CANNOT_LISTEN",
                       "cannot listen on " +
                           (options.listen.has_value() ? options.listen->ToString() : "nothing"));
  }
  control->SetHealth(false, true);
  // gRPC's own listener tells nobody of whom a connection is.
  access::ControlListener::Options socket;
  socket.path = options.socket;
  socket.mode = options.socket_mode;
  socket.group = options.socket_group;
  socket.connections = options.connections;
  socket.is_stranger = [&gate](const net::PeerCredentials& peer) { return gate.IsStranger(peer); };
  TORPOR_ASSIGN_OR_RETURN(control->listener_,
                          access::ControlListener::Start(
                              socket, gate.peers(), [server = control->server_.get()](int fd) {
                                grpc::AddInsecureChannelFromFd(server, fd);
                              }));
  control->listen_ = options.listen;
  if (control->listen_.has_value()) control->listen_->port = port;
  return control;
}

void ControlServer::SetProtected(bool is_protected) { health_.Set(kKeeperName, is_protected); }

void ControlServer::SetHealth(bool serving, bool alive) {
  // Who hears of the second finds the first so, too.
  health_.Set(kServiceName, serving);
  health_.Set("", serving);
  health_.Set(kAliveName, alive);
}

ControlServer::~ControlServer() {
  if (server_ != nullptr) Close(Duration::zero());
}

void ControlServer::Close(Duration patience) {
  if (listener_ != nullptr) listener_->Stop();
  std::promise<void> closed;
  std::thread end_connections([this, patience, over = closed.get_future()] {
    if (over.wait_for(patience + kForCancelledCalls) == std::future_status::ready) return;
    // gRPC finishes no call of a connection that it is writing to, not even a cancelled one: a
    // client that does not read would keep the server for ever.
    if (listener_ != nullptr) listener_->EndConnections();
    if (listen_.has_value()) EndTcpConnections(listen_->port);
  });
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::system_clock::duration>(patience));
  closed.set_value();
  end_connections.join();
}

void ControlServer::Shutdown(Duration patience, const std::function<void()>& hurry) {
  health_.EndServing();
  if (!service_.Drain(Clock::Real().Now() + patience)) {
    hurry();
    service_.Drain(Clock::Real().Now() + std::chrono::hours(24));
  }
  // An idle client would keep its connection for longer.
  Close(kForLastAnswers);
}

}  // namespace torpor
