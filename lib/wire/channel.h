#ifndef TORPOR_LIB_WIRE_CHANNEL_H_
#define TORPOR_LIB_WIRE_CHANNEL_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/wire/messages.h"

namespace torpor::wire {

// One end of the worker socket: asks the peer and matches its answers, hands the peer's requests to
// a handler. Thread-safe.
//
// The channel ends at the end of the stream, at a frame that cannot be trusted, or by End; from
// then on everything fails with UNAVAILABLE and the reason that the constructor was given.
class Channel {
 public:
  // Called by the thread in Run.
  class Handler {
   public:
    virtual ~Handler() = default;
    // `request` may lack its payload (net::Frame::payload_missing).
    virtual void OnRequest(net::Frame request) = 0;
  };

  // One question; the answer may come, or the channel may end, at any time.
  class Call;
  using CallPtr = std::shared_ptr<Call>;

  Channel(UniqueFd socket, std::string gone_reason);
  // No other call may be running.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Reads until the channel ends; returns why. `handler` may send (Start, Answer) and End, but not
  // wait: this thread is the one that takes answers in.
  Status Run(Handler& handler) EXCLUDES(mutex_, send_mutex_);
  // Shuts the socket down; Run returns soon.
  void End(const Status& cause) EXCLUDES(mutex_);
  // OK until the channel has ended.
  Status Gone() const EXCLUDES(mutex_);

  // `fds` are borrowed.
  Result<CallPtr> Start(Type type, const std::string& payload, const std::vector<int>& fds = {})
      EXCLUDES(mutex_, send_mutex_);
  // Blocks for the answer, at most until `deadline` (DEADLINE_EXCEEDED PEER_SILENT) or until
  // `cancel`, if there is one, is cancelled (its status); the answer is then dropped when it comes
  // after all. An answer whose payload this process had no descriptor for is
  // net::DescriptorsMissing.
  Result<net::Frame> Wait(const CallPtr& call, std::optional<TimePoint> deadline,
                          const CancelToken* cancel = nullptr) EXCLUDES(mutex_);

  template <typename Reply>
  Result<Reply> WaitFor(const CallPtr& call, std::optional<TimePoint> deadline,
                        const CancelToken* cancel = nullptr) {
    TORPOR_ASSIGN_OR_RETURN(const net::Frame answer, Wait(call, deadline, cancel));
    Result<Reply> reply = Decode<Reply>(answer.payload);
    if (!reply.ok()) End(reply.status());
    return reply;
  }
  template <typename Reply, typename Request>
  Result<Reply> Ask(Type type, const Request& request, std::optional<TimePoint> deadline,
                    const CancelToken* cancel = nullptr) {
    TORPOR_ASSIGN_OR_RETURN(const CallPtr call, Start(type, Encode(request)));
    return WaitFor<Reply>(call, deadline, cancel);
  }

  // Answers a request of the peer. An answer that there are no descriptors or memory to send
  // becomes one with that status alone, unless it carries `fds`.
  template <typename Reply>
  Status Answer(uint16_t request_type, uint64_t request_id, const Reply& reply,
                const std::vector<int>& fds = {}) {
    const uint16_t type = static_cast<uint16_t>(request_type + 1);
    Status sent = Send(type, request_id, Encode(reply), fds);
    if (sent.code() != Code::kResourceExhausted || !fds.empty()) return sent;
    Reply refusal;
    refusal.status = sent;
    return Send(type, request_id, Encode(refusal), {});
  }

 private:
  Status Send(uint16_t type, uint64_t id, const std::string& payload, const std::vector<int>& fds)
      EXCLUDES(send_mutex_);
  Status TakeAnswer(net::Frame answer) EXCLUDES(mutex_);

  const UniqueFd socket_;
  const std::string gone_reason_;
  Mutex send_mutex_;  // one sender at a time
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, CallPtr> waiting_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  Status gone_ GUARDED_BY(mutex_);
};

}  // namespace torpor::wire

#endif  // TORPOR_LIB_WIRE_CHANNEL_H_
