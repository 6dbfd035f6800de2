#ifndef TORPOR_CLIENT_CONNECTION_H_
#define TORPOR_CLIENT_CONNECTION_H_

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/wire/channel.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// A message together with the descriptors that came along.
template <typename Message>
struct WithFds {
  Message message;
  std::vector<UniqueFd> fds;
};

// A worker's channel to the daemon, after Hello, with the socket thread that reads it. A forked
// child closes its copy of the socket at once.
//
// Thread-safe. Once the channel has ended, or when the daemon does not drain its end for ten
// seconds, everything is UNAVAILABLE DAEMON_GONE.
class Connection {
 public:
  // Called by the socket thread: must not block.
  class Handler : public wire::Channel::Handler {
   public:
    // Once, and nothing after it.
    virtual void OnClosed() = 0;
  };

  explicit Connection(UniqueFd socket);
  // Stops. No other call may be running.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Starts the socket thread, which uses `handler` until Stop.
  void Start(Handler& handler);
  // Ends the connection and waits for the socket thread. Not from that thread.
  void Stop();

  // Asks the daemon and blocks for the answer, at most until `deadline`
  // (DEADLINE_EXCEEDED DAEMON_SILENT; the answer is dropped when it comes after all).
  // A reply's own status is the caller's to look at.
  template <typename Reply, typename Request>
  Result<WithFds<Reply>> AskForFds(wire::Type type, const Request& request,
                                   std::optional<TimePoint> deadline = std::nullopt) {
    TORPOR_ASSIGN_OR_RETURN(net::Frame answer, AskRaw(type, wire::Encode(request), deadline));
    Result<Reply> reply = wire::Decode<Reply>(answer.payload);
    if (!reply.ok()) {
      End(reply.status());
      return channel_.Gone();
    }
    return WithFds<Reply>{*std::move(reply), std::move(answer.fds)};
  }
  template <typename Reply, typename Request>
  Result<Reply> Ask(wire::Type type, const Request& request,
                    std::optional<TimePoint> deadline = std::nullopt) {
    TORPOR_ASSIGN_OR_RETURN(WithFds<Reply> reply, AskForFds<Reply>(type, request, deadline));
    return std::move(reply.message);
  }

  // Answers a request of the daemon. A failure ends the connection.
  template <typename Reply>
  void Answer(const net::Frame& request, const Reply& reply) {
    const Status sent = channel_.Answer(request.type, request.id, reply);
    if (!sent.ok()) End(sent);
  }

  // Ends the connection because of `cause`.
  void End(const Status& cause) { channel_.End(cause); }

 private:
  Result<net::Frame> AskRaw(wire::Type type, const std::string& payload,
                            std::optional<TimePoint> deadline);

  const int socket_;  // channel_'s
  wire::Channel channel_;
  std::thread reader_;
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_CONNECTION_H_
