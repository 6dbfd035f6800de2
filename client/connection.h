#ifndef TORPOR_CLIENT_CONNECTION_H_
#define TORPOR_CLIENT_CONNECTION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// A message together with the descriptors that came along.
template <typename Message>
struct WithFds {
  Message message;
  std::vector<UniqueFd> fds;
};

// A worker's end of the worker socket, after Hello. A thread of its own, the socket thread, reads:
// answers go to the callers that wait for them, requests to the handler.
//
// Thread-safe. The connection ends by itself at the end of the stream, at a frame that cannot be
// trusted, and when the daemon does not drain its end for ten seconds; from then on everything is
// UNAVAILABLE DAEMON_GONE.
class Connection {
 public:
  // Called by the socket thread: must not block.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnRequest(net::Frame request) = 0;
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
      return Gone();
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
    AnswerRaw(request, wire::Encode(reply));
  }

  // Ends the connection because of `cause`.
  void End(const Status& cause);
  // UNAVAILABLE DAEMON_GONE with the cause once the connection has ended; otherwise OK.
  Status Gone() const;

 private:
  struct Waiting {
    uint16_t answer_type = 0;
    bool answered = false;
    net::Frame answer;
  };

  Result<net::Frame> AskRaw(wire::Type type, const std::string& payload,
                            std::optional<TimePoint> deadline);
  void AnswerRaw(const net::Frame& request, const std::string& payload);
  void Read(Handler& handler);
  Status TakeAnswer(net::Frame answer);

  const UniqueFd socket_;
  std::thread reader_;

  Mutex send_mutex_;  // one sender at a time; nothing else is locked under it

  mutable Mutex mutex_;
  CondVar answered_;
  std::map<uint64_t, Waiting*> waiting_ GUARDED_BY(mutex_);  // by frame id
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  Status gone_ GUARDED_BY(mutex_);  // not OK: ended
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_CONNECTION_H_
