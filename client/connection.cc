#include "client/connection.h"

#include "client/fork_watch.h"
#include "client/thread.h"
#include "lib/net/unix_socket.h"

namespace torpor::client {
namespace {

constexpr seconds kSendTimeout{10};

// Hands requests on together with their link.
class LinkReader : public wire::Channel::Handler {
 public:
  LinkReader(LinkPtr link, Connection::Handler& handler)
      : link_(std::move(link)), handler_(handler) {}
  void OnRequest(net::Frame request) override { handler_.OnRequest(link_, std::move(request)); }

 private:
  const LinkPtr link_;
  Connection::Handler& handler_;
};

}  // namespace

Link::Link(UniqueFd socket, uint64_t generation)
    : socket_(socket.get()), generation_(generation), channel_(std::move(socket), "DAEMON_GONE") {
  CloseInForkedChild(socket_);
  const Status timeout = net::SetSendTimeout(socket_, kSendTimeout);
  if (!timeout.ok()) End(timeout);
}

Link::~Link() { KeepInForkedChild(socket_); }

void Connection::Start(Handler& handler, Dialer& dialer) {
  dialer_ = &dialer;
  thread_ = StartThread("torpor-socket", [this, &handler, &dialer] { Run(handler, dialer); });
}

void Connection::GiveUpReconnecting() {
  stop_.Cancel(Closed());
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void Connection::Stop() {
  GiveUpReconnecting();
  LinkPtr link;
  {
    MutexLock lock(mutex_);
    link = link_;
  }
  link->End(Closed());
  if (thread_.joinable()) thread_.join();
}

void Connection::Run(Handler& handler, Dialer& dialer) {
  LinkPtr link;
  {
    MutexLock lock(mutex_);
    link = link_;
  }
  for (;;) {
    LinkReader reader(link, handler);
    (void)link->channel().Run(reader);
    Status gone = link->Gone();
    if (dialer.MayComeBack() && !stop_.cancelled()) {
      handler.OnBroken();
      Result<LinkPtr> next = dialer.Dial(link->generation() + 1, gone, stop_);
      if (next.ok()) {
        MutexLock lock(mutex_);
        if (!stop_.cancelled()) {  // or Stop has ended the link before
          link = link_ = *std::move(next);
          changed_.NotifyAll();
          continue;
        }
        gone = Unavailable("DAEMON_GONE", "the session was closed");
      } else {
        gone = next.status();
      }
    }
    {
      MutexLock lock(mutex_);
      gone_ = gone;
      changed_.NotifyAll();
    }
    return handler.OnClosed();
  }
}

Result<LinkPtr> Connection::AwaitLink(uint64_t beyond, std::optional<TimePoint> deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    if (!gone_.ok()) return gone_;
    if (link_->generation() > beyond && link_->Gone().ok()) return link_;
    if (stop_.cancelled()) {
      return Unavailable("DAEMON_GONE", "the session is being closed and waits for no daemon")
          .With("cause", stop_.status().reason());
    }
    if (!deadline) {
      changed_.Wait(mutex_);
    } else if (!changed_.WaitUntil(mutex_, *deadline) && Clock::Real().Now() >= *deadline) {
      return DeadlineExceeded("DAEMON_SILENT", "the daemon has ended and not come back in time");
    }
  }
}

bool Connection::IsStopping(const Status& status) const {
  return status.code() == Code::kUnavailable && status.reason() == "DAEMON_STOPPING" &&
         dialer_->MayComeBack() && !stop_.cancelled();
}

Result<net::Frame> Connection::AskRaw(Link& link, wire::Type type, const std::string& payload,
                                      std::optional<TimePoint> deadline) {
  const Result<wire::Channel::CallPtr> call = link.channel().Start(type, payload);
  if (!call.ok()) {
    const Code code = call.status().code();
    if (code == Code::kInvalidArgument || code == Code::kResourceExhausted) {
      return call.status();  // nothing was sent
    }
    link.End(call.status());
    return link.Gone();
  }
  Result<net::Frame> answer = link.channel().Wait(*call, deadline);
  if (answer.status().reason() != "PEER_SILENT") return answer;
  return DeadlineExceeded("DAEMON_SILENT", "the daemon has not answered in time");
}

}  // namespace torpor::client
