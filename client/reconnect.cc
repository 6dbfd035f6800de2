#include "client/reconnect.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr milliseconds kBetweenAttempts{50};

// Of a connection that broke before the daemon had answered.
Status Gone(const Status& broken) {
  if (broken.code() != Code::kUnavailable) return broken;
  return Unavailable("DAEMON_GONE", "the daemon ended while a session was opened")
      .With("cause", broken.reason());
}

// OK: there is something to read.
Status AwaitReadable(int socket, TimePoint deadline) {
  pollfd readable{socket, POLLIN, 0};
  for (;;) {
    const int64_t left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::Real().Now()).count();
    const int ready =
        left > 0
            ? ::poll(&readable, 1,
                     static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max())))
            : 0;
    if (ready > 0) return Status::Ok();
    if (ready == 0) return DeadlineExceeded("DAEMON_SILENT", "the daemon has not answered a hello");
    if (errno != EINTR) return ErrnoStatus(errno, "wait for the daemon");
  }
}

void Pause(Duration duration, const CancelToken& stop) {
  Mutex mutex;
  CondVar stopped;
  const CancelToken::Callback wake(&stop, [&] {
    MutexLock lock(mutex);
    stopped.NotifyAll();
  });
  const TimePoint end = Clock::Real().Now() + duration;
  MutexLock lock(mutex);
  while (!stop.cancelled() && Clock::Real().Now() < end) stopped.WaitUntil(mutex, end);
}

// Of an attempt; the next one may do better.
bool MayPass(const Status& failed) {
  return failed.code() == Code::kUnavailable || failed.code() == Code::kDeadlineExceeded ||
         failed.code() == Code::kResourceExhausted;  // descriptors, threads; here or there
}

Status DaemonGone(const char* message, const std::string& cause) {
  return Unavailable("DAEMON_GONE", message).With("cause", cause);
}

}  // namespace

Result<wire::HelloReply> SayHello(int socket, const wire::Hello& hello, TimePoint deadline) {
  if (const Status sent =
          net::SendFrame(socket, static_cast<uint16_t>(wire::Type::kHello), 0, wire::Encode(hello));
      !sent.ok()) {
    return Gone(sent);
  }
  TORPOR_RETURN_IF_ERROR(AwaitReadable(socket, deadline));
  const Result<net::Frame> answer = net::ReceiveFrame(socket);
  if (!answer.ok()) return Gone(answer.status());
  if (answer->payload_missing) return net::DescriptorsMissing();
  if (answer->type != wire::Answer(wire::Type::kHello)) {
    return InvalidArgument("BAD_FRAME", "the daemon's first frame does not answer the hello")
        .With("type", answer->type);
  }
  TORPOR_ASSIGN_OR_RETURN(wire::HelloReply reply, wire::Decode<wire::HelloReply>(answer->payload));
  TORPOR_RETURN_IF_ERROR(reply.status);
  return reply;
}

Reconnector::Reconnector(std::string socket_path, const wire::HelloReply& first, Worker& worker)
    : socket_path_(std::move(socket_path)),
      worker_(worker),
      last_(first),
      grace_ms_(first.reconnect_grace_ms) {}

Result<LinkPtr> Reconnector::Dial(uint64_t generation, const Status& broken,
                                  const CancelToken& stop) {
  // A bound that no clock overflows.
  const milliseconds grace(std::min<int64_t>(grace_ms_, int64_t{365} * 24 * 3600 * 1000));
  const TimePoint deadline = Clock::Real().Now() + grace;
  for (;;) {
    Result<LinkPtr> link = TryOnce(generation, deadline, stop);
    if (link.ok()) return link;
    if (stop.cancelled()) {
      return DaemonGone("the session was closed", stop.status().reason());
    }
    const Status& failed = link.status();
    if (!MayPass(failed)) {
      return DaemonGone("the daemon was started again and has refused this session",
                        failed.reason())
          .With("refusal", failed.ToString());
    }
    if (Clock::Real().Now() >= deadline) {
      const auto cause = broken.details().find("cause");
      return DaemonGone("the daemon has ended and not come back in its grace time",
                        cause == broken.details().end() ? broken.reason() : cause->second)
          .With("grace_ms", grace.count());
    }
    Pause(kBetweenAttempts, stop);
  }
}

Result<LinkPtr> Reconnector::TryOnce(uint64_t generation, TimePoint deadline,
                                     const CancelToken& stop) {
  Result<UniqueFd> socket = net::ConnectUnix(socket_path_, kBetweenAttempts);
  // Whatever it is, it may pass: a path that is not there, a full backlog, a lack of descriptors.
  if (!socket.ok()) return Unavailable("DAEMON_NOT_RUNNING", socket.status().message());
  const auto link = std::make_shared<Link>(*std::move(socket), generation);
  const CancelToken::Callback end(&stop, [&] { ::shutdown(link->socket(), SHUT_RDWR); });
  wire::Hello hello = worker_.MakeHello(generation);
  hello.session = last_.worker;
  hello.secret = last_.secret;
  Result<wire::HelloReply> reply = SayHello(link->socket(), hello, deadline);
  TORPOR_RETURN_IF_ERROR(reply.status());
  TORPOR_RETURN_IF_ERROR(CheckSame(*reply));
  last_ = *std::move(reply);
  grace_ms_ = last_.reconnect_grace_ms;
  worker_.OnWelcome(link, last_);
  return link;
}

Status Reconnector::CheckSame(const wire::HelloReply& reply) const {
  if (reply.device_uuid == last_.device_uuid && reply.arena_size == last_.arena_size &&
      reply.granularity == last_.granularity) {
    return Status::Ok();
  }
  return FailedPrecondition("WRONG_DEVICE", "another device is served where the daemon was")
      .With("daemon_device", reply.device_uuid)
      .With("worker_device", last_.device_uuid);
}

}  // namespace torpor::client
