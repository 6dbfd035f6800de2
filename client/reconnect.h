#ifndef TORPOR_CLIENT_RECONNECT_H_
#define TORPOR_CLIENT_RECONNECT_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "client/connection.h"
#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/wire/messages.h"

namespace torpor::client {

// Says hello over a socket that has just been connected and waits for the answer.
//   UNAVAILABLE DAEMON_GONE: the daemon hung up
//   DEADLINE_EXCEEDED DAEMON_SILENT, or what the daemon answers
Result<wire::HelloReply> SayHello(int socket, const wire::Hello& hello, TimePoint deadline);

// Brings a worker back to a daemon that was started again: looks for its socket, which may be
// absent or refuse for a while, and says who the worker was.
//
// The daemon waits for so long as its last HelloReply said (the grace time), counted here from the
// end of the link. A session that it does not know any more is lost; what it refuses as UNAVAILABLE
// or RESOURCE_EXHAUSTED (descriptors, threads) is tried again.
class Reconnector : public Connection::Dialer {
 public:
  // What the worker was and is. Called by the socket thread: must not block.
  class Worker {
   public:
    virtual ~Worker() = default;
    // To be said to the daemon of `generation`. Session and secret are the reconnector's to fill.
    virtual wire::Hello MakeHello(uint64_t generation) = 0;
    // The daemon took the worker in; nothing else has been said on `link`.
    virtual void OnWelcome(const LinkPtr& link, const wire::HelloReply& reply) = 0;
  };

  // `first`: of the session's first hello. `worker` must outlive the reconnector.
  Reconnector(std::string socket_path, const wire::HelloReply& first, Worker& worker);

  bool MayComeBack() const override { return grace_ms_ > 0; }
  // The error is UNAVAILABLE DAEMON_GONE with the detail `cause`: the reason of the daemon's
  // refusal, SESSION_CLOSED, or that of `broken`.
  Result<LinkPtr> Dial(uint64_t generation, const Status& broken, const CancelToken& stop) override;

 private:
  Result<LinkPtr> TryOnce(uint64_t generation, TimePoint deadline, const CancelToken& stop);
  Status CheckSame(const wire::HelloReply& reply) const;

  const std::string socket_path_;
  Worker& worker_;
  wire::HelloReply last_;  // of the socket thread
  std::atomic<int64_t> grace_ms_;
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_RECONNECT_H_
