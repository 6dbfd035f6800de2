#include "client/connection.h"

#include "client/fork_watch.h"
#include "client/thread.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr seconds kSendTimeout{10};

}  // namespace

Connection::Connection(UniqueFd socket)
    : socket_(socket.get()), channel_(std::move(socket), "DAEMON_GONE") {
  CloseInForkedChild(socket_);
}

Connection::~Connection() {
  Stop();
  KeepInForkedChild(socket_);
}

void Connection::Start(Handler& handler) {
  const Status timeout = net::SetSendTimeout(socket_, kSendTimeout);
  if (!timeout.ok()) End(timeout);
  reader_ = StartThread("torpor-socket", [this, &handler] {
    (void)channel_.Run(handler);
    handler.OnClosed();
  });
}

void Connection::Stop() {
  End(Unavailable("SESSION_CLOSED", "the session was closed"));
  if (reader_.joinable()) reader_.join();
}

Result<net::Frame> Connection::AskRaw(wire::Type type, const std::string& payload,
                                      std::optional<TimePoint> deadline) {
  const Result<wire::Channel::CallPtr> call = channel_.Start(type, payload);
  if (!call.ok()) {
    const Code code = call.status().code();
    if (code == Code::kInvalidArgument || code == Code::kResourceExhausted) {
      return call.status();  // nothing was sent
    }
    End(call.status());
    return channel_.Gone();
  }
  Result<net::Frame> answer = channel_.Wait(*call, deadline);
  if (answer.status().reason() != "PEER_SILENT") return answer;
  return DeadlineExceeded("DAEMON_SILENT", "the daemon has not answered in time");
}

}  // namespace torpor::client
