#ifndef TORPOR_DAEMON_KEEPER_CHANNEL_H_
#define TORPOR_DAEMON_KEEPER_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/keeper/protocol.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/wire/codec.h"

namespace torpor::keeper {

// The daemon's end of a connection to the keeper. Not thread-safe, but for `fd`.
class Channel {
 public:
  // `timeout` of each answer; nothing is waited for once `stop` is readable.
  //   UNAVAILABLE KEEPER_NOT_RUNNING: nobody listens at `path`
  static Result<std::shared_ptr<Channel>> Connect(const std::string& path, Duration timeout,
                                                  int stop);

  // Asks and waits for the answer. A failure is either the keeper's refusal, or the question could
  // not be sent as it is, or the keeper is `lost`: it is gone, silent, or answers another question.
  //   UNAVAILABLE, DEADLINE_EXCEEDED KEEPER_SILENT, INVALID_ARGUMENT BAD_FRAME: lost
  //   FAILED_PRECONDITION KEEPER_PROTOCOL: lost; its frames are of another version
  template <typename Answer, typename Question>
  Result<Answer> Ask(Type type, const Question& question, const std::vector<int>& fds = {},
                     std::vector<UniqueFd>* got = nullptr) {
    TORPOR_ASSIGN_OR_RETURN(net::Frame frame,
                            Exchange(static_cast<uint16_t>(type), wire::Encode(question), fds));
    Result<Answer> answer = wire::Decode<Answer>(frame.payload);
    if (!answer.ok()) return Lost(Unreadable(frame.payload, answer.status()));
    if (!answer->status.ok()) return answer->status;
    if (got != nullptr) *got = std::move(frame.fds);
    return answer;
  }

  // None: for as long as it takes, or the other end is there.
  void SetTimeout(std::optional<Duration> timeout) { timeout_ = timeout; }

  bool lost() const { return lost_; }
  // Ends the connection for whoever waits at `fd`, too.
  void Close();
  int fd() const { return socket_.get(); }

 private:
  Channel(UniqueFd socket, Duration timeout, int stop)
      : socket_(std::move(socket)), timeout_(timeout), stop_(stop) {}
  Result<net::Frame> Exchange(uint16_t type, const std::string& payload,
                              const std::vector<int>& fds);
  // A refusal by a keeper of another protocol, or else `error`.
  static Status Unreadable(const std::string& answer, const Status& error);
  Status Await() const;
  Status Lost(Status why);

  const UniqueFd socket_;
  std::optional<Duration> timeout_;
  const int stop_;
  uint64_t last_ = 0;
  bool lost_ = false;
};

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_CHANNEL_H_
