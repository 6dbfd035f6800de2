#ifndef TORPOR_CLIENT_CONNECTION_H_
#define TORPOR_CLIENT_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/wire/channel.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// A worker's channel to one life of the daemon. A forked child closes its copy of the socket at
// once. Once it has ended, or when the daemon does not drain its end for ten seconds, everything is
// UNAVAILABLE DAEMON_GONE. Thread-safe.
class Link {
 public:
  // Of two links of a session the later has the higher generation; the first has 1.
  Link(UniqueFd socket, uint64_t generation);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  uint64_t generation() const { return generation_; }
  // For the hello, before the channel is run.
  int socket() const { return socket_; }
  wire::Channel& channel() { return channel_; }

  Status Gone() const { return channel_.Gone(); }
  void End(const Status& cause) { channel_.End(cause); }

  // Answers a request of the daemon. A failure ends the link.
  template <typename Reply>
  void Answer(const net::Frame& request, const Reply& reply) {
    const Status sent = channel_.Answer(request.type, request.id, reply);
    if (!sent.ok()) End(sent);
  }
  // Asks and does not want to know. A failure ends the link.
  template <typename Request>
  void Tell(wire::Type type, const Request& request) {
    const auto call = channel_.Start(type, wire::Encode(request));
    if (!call.ok()) End(call.status());
  }

 private:
  const int socket_;  // channel_'s
  const uint64_t generation_;
  wire::Channel channel_;
};
using LinkPtr = std::shared_ptr<Link>;

// A message, the descriptors that came along, and where it came from.
template <typename Message>
struct Received {
  Message message;
  std::vector<UniqueFd> fds;
  LinkPtr link;
};

// A worker's connection to the daemon, over the lives of it: a link, the socket thread that reads
// it and, when it ends, looks for the daemon that comes next. Thread-safe.
class Connection {
 public:
  // Called by the socket thread: must not block.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnRequest(const LinkPtr& link, net::Frame request) = 0;
    // The link has ended; nothing more comes from it. Another may follow, or OnClosed.
    virtual void OnBroken() = 0;
    // Once, and nothing after it.
    virtual void OnClosed() = 0;
  };
  // Makes the next link, the hello said. Used by the socket thread.
  class Dialer {
   public:
    virtual ~Dialer() = default;
    // Whether a daemon that ends now may come back.
    virtual bool MayComeBack() const = 0;
    // Blocks until there is a link, or none is to be expected any more, or until `stop`. `broken`:
    // of the last one. The error is what everybody is told from then on.
    virtual Result<LinkPtr> Dial(uint64_t generation, const Status& broken,
                                 const CancelToken& stop) = 0;
  };
  // When an asker gives up with DEADLINE_EXCEEDED DAEMON_SILENT; an answer that comes after all is
  // dropped.
  struct Patience {
    std::optional<TimePoint> away;    // waiting for a daemon that has ended
    std::optional<TimePoint> answer;  // waiting for one that has been asked
  };

  explicit Connection(LinkPtr link) : link_(std::move(link)) {}
  // Stops. No other call may be running.
  ~Connection() { Stop(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Starts the socket thread, which uses both until Stop.
  void Start(Handler& handler, Dialer& dialer);
  // Does not wait for a daemon any more, now or later. What is connected stays so.
  void GiveUpReconnecting() EXCLUDES(mutex_);
  // Ends the connection and waits for the socket thread. Not from that thread.
  void Stop();

  // Asks the daemon and blocks for the answer. When the link breaks, or the daemon says that it is
  // about to end, the question is made anew and put to the next one.
  //   UNAVAILABLE DAEMON_GONE: no daemon comes any more
  // A reply's own status is the caller's to look at.
  template <typename Reply, typename Make>
  Result<Received<Reply>> AskMade(wire::Type type, Make make, const Patience& patience = {}) {
    for (uint64_t beyond = 0;;) {
      TORPOR_ASSIGN_OR_RETURN(const LinkPtr link, AwaitLink(beyond, patience.away));
      Result<Received<Reply>> reply = AskOn<Reply>(link, type, make(), patience.answer);
      if (!Broken(reply.status()) && !(reply.ok() && IsStopping(reply->message.status))) {
        return reply;
      }
      beyond = link->generation();
    }
  }
  template <typename Reply, typename Request>
  Result<Received<Reply>> Ask(wire::Type type, const Request& request) {
    return AskMade<Reply>(type, [&]() -> const Request& { return request; });
  }

  // Asks over this link only.
  template <typename Reply, typename Request>
  static Result<Received<Reply>> AskOn(const LinkPtr& link, wire::Type type, const Request& request,
                                       std::optional<TimePoint> deadline = std::nullopt) {
    TORPOR_ASSIGN_OR_RETURN(net::Frame answer,
                            AskRaw(*link, type, wire::Encode(request), deadline));
    Result<Reply> reply = wire::Decode<Reply>(answer.payload);
    if (!reply.ok()) {
      link->End(reply.status());
      return link->Gone();
    }
    return Received<Reply>{*std::move(reply), std::move(answer.fds), link};
  }
  // Of AskOn: the link has ended, and what the daemon has made of the question is not known.
  static bool Broken(const Status& asked) { return asked.code() == Code::kUnavailable; }

 private:
  static Status Closed() { return Unavailable("SESSION_CLOSED", "the session was closed"); }
  static Result<net::Frame> AskRaw(Link& link, wire::Type type, const std::string& payload,
                                   std::optional<TimePoint> deadline);

  void Run(Handler& handler, Dialer& dialer);
  // A link of a higher generation than `beyond` that has not ended; waits for it.
  Result<LinkPtr> AwaitLink(uint64_t beyond, std::optional<TimePoint> deadline) EXCLUDES(mutex_);
  // The answer of a daemon that ends, to be followed by another.
  bool IsStopping(const Status& status) const;

  CancelToken stop_;
  const Dialer* dialer_ = nullptr;
  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  LinkPtr link_ GUARDED_BY(mutex_);  // the last one
  Status gone_ GUARDED_BY(mutex_);   // not OK: none follows
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_CONNECTION_H_
