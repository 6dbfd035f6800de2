#include "lib/wire/channel.h"

#include <sys/socket.h>

#include <utility>

namespace torpor::wire {

class Channel::Call {
 public:
  uint64_t id = 0;
  uint16_t answer_type = 0;
  bool answered = false;
  net::Frame answer;
};

Channel::Channel(UniqueFd socket, std::string gone_reason)
    : socket_(std::move(socket)), gone_reason_(std::move(gone_reason)) {}

Channel::~Channel() = default;

Status Channel::Run(Handler& handler) {
  for (;;) {
    Result<net::Frame> frame = net::ReceiveFrame(socket_.get());
    Status status = frame.status();
    if (frame.ok()) {
      // Requests have even types, answers odd ones.
      if (frame->type % 2 == 0) {
        handler.OnRequest(*std::move(frame));
        continue;
      }
      status = TakeAnswer(*std::move(frame));
      if (status.ok()) continue;
    }
    End(status);
    return status;
  }
}

void Channel::End(const Status& cause) {
  {
    MutexLock lock(mutex_);
    if (gone_.ok()) {
      gone_ = Unavailable(gone_reason_, "the connection has ended: " + cause.message());
      gone_.Add("cause", cause.reason());
    }
  }
  ::shutdown(socket_.get(), SHUT_RDWR);
  changed_.NotifyAll();
}

Status Channel::Gone() const {
  MutexLock lock(mutex_);
  return gone_;
}

Result<Channel::CallPtr> Channel::Start(Type type, const std::string& payload,
                                        const std::vector<int>& fds) {
  auto call = std::make_shared<Call>();
  call->answer_type = wire::Answer(type);
  {
    MutexLock lock(mutex_);
    if (!gone_.ok()) return gone_;
    call->id = ++last_id_;
    waiting_[call->id] = call;
  }
  const Status sent = Send(static_cast<uint16_t>(type), call->id, payload, fds);
  if (sent.ok()) return call;
  // The peer has hung up, which Run has yet to see.
  if (sent.code() == Code::kUnavailable) End(sent);
  MutexLock lock(mutex_);
  waiting_.erase(call->id);
  return gone_.ok() ? sent : gone_;
}

Result<net::Frame> Channel::Wait(const CallPtr& call, std::optional<TimePoint> deadline,
                                 const CancelToken* cancel) {
  const CancelToken::Callback wake(cancel, [this] {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  });
  {
    MutexLock lock(mutex_);
    for (;;) {
      if (call->answered) {
        if (call->answer.payload_missing) return net::DescriptorsMissing();
        return std::move(call->answer);
      }
      if (!gone_.ok()) return gone_;
      if (cancel != nullptr && cancel->cancelled()) break;
      if (!deadline.has_value()) {
        changed_.Wait(mutex_);
      } else if (!changed_.WaitUntil(mutex_, *deadline) && !call->answered &&
                 std::chrono::steady_clock::now() >= *deadline) {
        waiting_.erase(call->id);
        return DeadlineExceeded("PEER_SILENT", "the other side did not answer in time");
      }
    }
    waiting_.erase(call->id);
  }
  return cancel->status();
}

Status Channel::Send(uint16_t type, uint64_t id, const std::string& payload,
                     const std::vector<int>& fds) {
  MutexLock lock(send_mutex_);
  return net::SendFrame(socket_.get(), type, id, payload, fds);
}

Status Channel::TakeAnswer(net::Frame answer) {
  MutexLock lock(mutex_);
  const auto it = waiting_.find(answer.id);
  if (it == waiting_.end()) {
    // Late: its caller has given up. An id that was never asked is a broken peer.
    if (answer.id != 0 && answer.id <= last_id_) return Status::Ok();
    return InvalidArgument("BAD_FRAME", "an answer to what was not asked");
  }
  if (it->second->answer_type != answer.type) {
    return InvalidArgument("BAD_FRAME", "an answer of another type than the question");
  }
  it->second->answer = std::move(answer);
  it->second->answered = true;
  waiting_.erase(it);
  changed_.NotifyAll();
  return Status::Ok();
}

}  // namespace torpor::wire
