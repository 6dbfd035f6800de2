#include "client/connection.h"

#include <sys/socket.h>

#include "client/fork_watch.h"
#include "client/thread.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr seconds kSendTimeout{10};

bool IsAnswer(uint16_t type) { return (type & 1) != 0; }

}  // namespace

Connection::Connection(UniqueFd socket) : socket_(std::move(socket)) {
  CloseInForkedChild(socket_.get());
}

Connection::~Connection() {
  Stop();
  KeepInForkedChild(socket_.get());
}

void Connection::Stop() {
  End(Unavailable("SESSION_CLOSED", "the session was closed"));
  if (reader_.joinable()) reader_.join();
}

void Connection::Start(Handler& handler) {
  const Status timeout = net::SetSendTimeout(socket_.get(), kSendTimeout);
  if (!timeout.ok()) End(timeout);
  reader_ = StartThread("torpor-socket", [this, &handler] { Read(handler); });
}

void Connection::End(const Status& cause) {
  MutexLock lock(mutex_);
  if (!gone_.ok()) return;
  gone_ = Unavailable("DAEMON_GONE", "the connection to the daemon has ended: " + cause.message())
              .With("cause", cause.reason());
  // The socket thread notices and tells the handler; the descriptor stays until the destructor.
  ::shutdown(socket_.get(), SHUT_RDWR);
  answered_.NotifyAll();
}

Status Connection::Gone() const {
  MutexLock lock(mutex_);
  return gone_;
}

Result<net::Frame> Connection::AskRaw(wire::Type type, const std::string& payload,
                                      std::optional<TimePoint> deadline) {
  Waiting waiting;
  waiting.answer_type = wire::Answer(type);
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (!gone_.ok()) return gone_;
    id = ++last_id_;
    waiting_.emplace(id, &waiting);
  }
  Status sent;
  {
    MutexLock lock(send_mutex_);
    sent = net::SendFrame(socket_.get(), static_cast<uint16_t>(type), id, payload);
  }
  if (!sent.ok() && sent.reason() != "FRAME_TOO_LARGE") End(sent);

  MutexLock lock(mutex_);
  while (sent.ok() && gone_.ok() && !waiting.answered) {
    if (!deadline) {
      answered_.Wait(mutex_);
    } else if (!answered_.WaitUntil(mutex_, *deadline) && !waiting.answered && gone_.ok()) {
      sent = DeadlineExceeded("DAEMON_SILENT", "the daemon has not answered in time");
    }
  }
  waiting_.erase(id);
  if (waiting.answered) return std::move(waiting.answer);
  return gone_.ok() ? sent : gone_;
}

void Connection::AnswerRaw(const net::Frame& request, const std::string& payload) {
  Status sent;
  {
    MutexLock lock(send_mutex_);
    sent = net::SendFrame(socket_.get(), wire::Answer(static_cast<wire::Type>(request.type)),
                          request.id, payload);
  }
  if (!sent.ok()) End(sent);
}

void Connection::Read(Handler& handler) {
  for (;;) {
    Result<net::Frame> frame = net::ReceiveFrame(socket_.get());
    Status status = frame.status();
    if (status.ok() && IsAnswer(frame->type)) {
      status = TakeAnswer(*std::move(frame));
    } else if (status.ok()) {
      handler.OnRequest(*std::move(frame));
    }
    if (!status.ok()) {
      End(status);
      handler.OnClosed();
      return;
    }
  }
}

Status Connection::TakeAnswer(net::Frame answer) {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(answer.id);
  if (found == waiting_.end()) return Status::Ok();  // its caller has given up
  Waiting& waiting = *found->second;
  if (waiting.answer_type != answer.type) {
    return InvalidArgument("BAD_FRAME", "an answer has another type than its request")
        .With("type", answer.type)
        .With("expected_type", waiting.answer_type);
  }
  waiting.answer = std::move(answer);
  waiting.answered = true;
  answered_.NotifyAll();
  return Status::Ok();
}

}  // namespace torpor::client
