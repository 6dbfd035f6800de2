#ifndef TORPOR_DAEMON_METRICS_HTTP_ENDPOINT_H_
#define TORPOR_DAEMON_METRICS_HTTP_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "lib/base/status.h"

namespace torpor::metrics {

// Serves GET (and HEAD) of one path over HTTP, with libevent's server, on a thread of its own: one
// request after the other. Everything else is 404 or 405. Its methods are for one thread.
class HttpEndpoint {
 public:
  struct Options {
    std::string host;  // a numeric address
    int port = 0;      // 0: any that is free
    std::string path;
    std::string content_type;
  };

  // Serves on return what `body` gives. UNAVAILABLE CANNOT_LISTEN; RESOURCE_EXHAUSTED
  // THREADS_EXHAUSTED.
  static Result<std::unique_ptr<HttpEndpoint>> Start(Options options,
                                                     std::function<std::string()> body);
  // Ends all connections.
  ~HttpEndpoint();
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;

  // That was taken.
  int port() const;

 private:
  class Server;
  explicit HttpEndpoint(std::unique_ptr<Server> server);
  const std::unique_ptr<Server> server_;
};

}  // namespace torpor::metrics

#endif  // TORPOR_DAEMON_METRICS_HTTP_ENDPOINT_H_
