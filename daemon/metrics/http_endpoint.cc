#include "daemon/metrics/http_endpoint.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "daemon/operation/tasks.h"
#include "lib/base/unique_fd.h"

namespace torpor::metrics {
namespace {

// For a request to come, and for an answer to be taken.
constexpr int kTimeoutSeconds = 10;
constexpr int kLongestHeaders = 16 << 10;

struct Free {
  void operator()(event_base* base) const { event_base_free(base); }
  void operator()(evhttp* http) const { evhttp_free(http); }
  void operator()(event* one) const { event_free(one); }
};

int PortOf(int fd) {
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) return 0;
  return ntohs(local.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(local).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(local).sin_port);
}

}  // namespace

class HttpEndpoint::Server {
 public:
  Server(Options options, std::function<std::string()> body)
      : options_(std::move(options)), body_(std::move(body)) {}

  ~Server() {
    if (!thread_.joinable()) return;
    // The loop belongs to its thread.
    const uint64_t one = 1;
    while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

  Status Start() {
    stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!stop_.valid()) return ErrnoStatus(errno, "create an eventfd");
    base_.reset(event_base_new());
    if (base_ == nullptr) return CannotListen("libevent has no way to wait for sockets");
    http_.reset(evhttp_new(base_.get()));
    evhttp_set_timeout(http_.get(), kTimeoutSeconds);
    evhttp_set_max_headers_size(http_.get(), kLongestHeaders);
    evhttp_set_max_body_size(http_.get(), 0);
    evhttp_set_allowed_methods(http_.get(), EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_cb(
        http_.get(), options_.path.c_str(),
        [](evhttp_request* request, void* self) { static_cast<Server*>(self)->Answer(request); },
        this);
    evhttp_bound_socket* const bound = evhttp_bind_socket_with_handle(
        http_.get(), options_.host.c_str(), static_cast<uint16_t>(options_.port));
    if (bound == nullptr) return CannotListen(std::strerror(errno));
    port_ = PortOf(evhttp_bound_socket_get_fd(bound));
    stopper_.reset(event_new(
        base_.get(), stop_.get(), EV_READ,
        [](evutil_socket_t, short, void* base) {
          event_base_loopbreak(static_cast<event_base*>(base));
        },
        base_.get()));
    event_add(stopper_.get(), nullptr);
    TORPOR_ASSIGN_OR_RETURN(thread_,
                            StartThread([base = base_.get()] { event_base_dispatch(base); }));
    return Status::Ok();
  }

  int port() const { return port_; }

 private:
  Status CannotListen(const std::string& why) const {
    return Unavailable("CANNOT_LISTEN", "cannot listen on " + options_.host + ", port " +
                                            std::to_string(options_.port) + ": " + why);
  }

  void Answer(evhttp_request* request) const {
    const std::string text = body_();
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type",
                      options_.content_type.c_str());
    evbuffer* const buffer = evbuffer_new();
    if (evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {
      evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Length",
                        std::to_string(text.size()).c_str());
    } else {
      evbuffer_add(buffer, text.data(), text.size());
    }
    evhttp_send_reply(request, HTTP_OK, nullptr, buffer);
    evbuffer_free(buffer);
  }

  const Options options_;
  const std::function<std::string()> body_;
  UniqueFd stop_;
  int port_ = 0;
  std::unique_ptr<event_base, Free> base_;
  std::unique_ptr<evhttp, Free> http_;
  std::unique_ptr<event, Free> stopper_;
  std::thread thread_;
};

HttpEndpoint::HttpEndpoint(std::unique_ptr<Server> server) : server_(std::move(server)) {}
HttpEndpoint::~HttpEndpoint() = default;

int HttpEndpoint::port() const { return server_->port(); }

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(Options options,
                                                          std::function<std::string()> body) {
  auto server = std::make_unique<Server>(std::move(options), std::move(body));
  TORPOR_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(server)));
}

}  // namespace torpor::metrics
