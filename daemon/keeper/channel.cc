#include "daemon/keeper/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lib/net/unix_socket.h"

namespace torpor::keeper {

Result<std::shared_ptr<Channel>> Channel::Connect(const std::string& path, Duration timeout,
                                                  int stop) {
  Result<UniqueFd> socket = net::ConnectUnix(path);
  if (!socket.ok()) {
    if (socket.status().code() != Code::kUnavailable) return socket.status();
    return Unavailable("KEEPER_NOT_RUNNING", "no keeper listens at " + path).With("path", path);
  }
  TORPOR_RETURN_IF_ERROR(net::SetSendTimeout(socket->get(), timeout));
  return std::shared_ptr<Channel>(new Channel(*std::move(socket), timeout, stop));
}

Result<net::Frame> Channel::Exchange(uint16_t type, const std::string& payload,
                                     const std::vector<int>& fds) {
  const uint64_t id = ++last_;
  if (Status sent = net::SendFrame(socket_.get(), type, id, payload, fds); !sent.ok()) {
    const bool gone = sent.code() == Code::kUnavailable || sent.code() == Code::kDeadlineExceeded;
    return gone ? Lost(std::move(sent)) : sent;
  }
  if (Status there = Await(); !there.ok()) return Lost(std::move(there));
  Result<net::Frame> frame = net::ReceiveFrame(socket_.get());
  if (frame.status().reason() == "WRONG_VERSION") {
    return Lost(FailedPrecondition("KEEPER_PROTOCOL", "the keeper's frames are of another version")
                    .With("frame_version", net::kFrameVersion)
                    .With("keeper_frame_version", frame.status().details().at("version")));
  }
  if (!frame.ok()) return Lost(frame.status());
  if (frame->id != id || frame->type != AnswerTo(type)) {
    return Lost(InvalidArgument("BAD_FRAME", "the keeper answers what it was not asked")
                    .With("type", frame->type));
  }
  if (frame->fds_missing || frame->payload_missing) return net::DescriptorsMissing();
  return frame;
}

Status Channel::Unreadable(const std::string& answer, const Status& error) {
  Status refusal;
  wire::Reader first(answer);
  first(refusal);
  return first.ok() && !refusal.ok() ? refusal : error;
}

Status Channel::Await() const {
  const Clock& clock = Clock::Real();
  const TimePoint begun = clock.Now();
  for (;;) {
    int wait = -1;
    if (timeout_.has_value()) {
      const Duration left = std::max(Duration(), *timeout_ - (clock.Now() - begun));
      wait = static_cast<int>(std::chrono::ceil<milliseconds>(left).count());
    }
    pollfd polled[] = {{socket_.get(), POLLIN, 0}, {stop_, POLLIN, 0}};
    const int ready = ::poll(polled, 2, wait);
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "wait for the keeper");
    if (ready < 0) continue;
    if (polled[0].revents != 0) return Status::Ok();
    if (polled[1].revents != 0) return Unavailable("DAEMON_STOPPING", "the daemon ends");
    if (wait == 0) break;
  }
  const auto waited = std::chrono::duration_cast<milliseconds>(clock.Now() - begun).count();
  return DeadlineExceeded("KEEPER_SILENT",
                          "the keeper has not answered for " + std::to_string(waited) + " ms")
      .With("waited_ms", waited);
}

Status Channel::Lost(Status why) {
  lost_ = true;
  Close();
  return why;
}

void Channel::Close() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace torpor::keeper
