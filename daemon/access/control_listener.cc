#include "daemon/access/control_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include "daemon/operation/tasks.h"

namespace torpor::access {
namespace {

constexpr Duration kAcceptPause = milliseconds(50);
constexpr size_t kMostConnections = 1024;
constexpr size_t kFewestConnections = 8;
constexpr int kAcceptsInARow = 64;  // until those that have ended are looked for

// A connection takes two descriptors; extents and workers need the others.
size_t ConnectionsByLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewestConnections;
  return std::clamp<size_t>(limit.rlim_cur / 16, kFewestConnections, kMostConnections);
}

UniqueFd OpenSpare() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

Status SetNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return Status::Ok();
  return ErrnoStatus(errno, "make a connection non-blocking");
}

}  // namespace

Result<std::unique_ptr<ControlListener>> ControlListener::Start(const Options& asked, Peers& peers,
                                                                Take take) {
  Options options = asked;
  if (options.connections == 0) options.connections = ConnectionsByLimit();
  TORPOR_ASSIGN_OR_RETURN(UniqueFd socket,
                          net::ListenUnix(options.path, options.mode, options.group, SOCK_STREAM));
  // Whoever has connected may be gone by the time of accept.
  TORPOR_RETURN_IF_ERROR(SetNonBlocking(socket.get()));
  std::unique_ptr<ControlListener> listener(
      new ControlListener(std::move(socket), options, peers, std::move(take)));
  listener->spare_ = OpenSpare();
  TORPOR_ASSIGN_OR_RETURN(listener->thread_,
                          StartThread([raw = listener.get()] { raw->Accept(); }));
  return listener;
}

ControlListener::~ControlListener() { Stop(); }

void ControlListener::Stop() {
  if (!thread_.joinable()) return;
  ::unlink(options_.path.c_str());
  stopping_ = true;
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

void ControlListener::EndConnections() {
  for (const Connection& connection : connections_) {
    ::shutdown(connection.watch.get(), SHUT_RDWR);
  }
}

void ControlListener::Accept() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign(1, {listener_.get(), POLLIN, 0});
    for (const Connection& one : connections_) polled.push_back({one.watch.get(), 0, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0) {
      if (errno != EINTR) std::this_thread::sleep_for(kAcceptPause);
      continue;
    }
    if (stopping_) return;
    // A connection that has ended hangs up, whoever ended it: gRPC shuts it down.
    std::vector<Connection> open;
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (polled[i + 1].revents == 0) open.push_back(std::move(connections_[i]));
    }
    connections_ = std::move(open);
    count_ = connections_.size();
    if (polled[0].revents == 0) continue;
    for (int i = 0; i < kAcceptsInARow && AcceptOne(); ++i) {
    }
  }
}

bool ControlListener::AcceptOne() {
  if (!spare_.valid()) spare_ = OpenSpare();
  int error = 0;
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) error = errno;
  Connection connection;
  if (socket.valid()) {
    connection.watch = UniqueFd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    if (!connection.watch.valid()) error = errno;
  }
  if (error == 0) {
    const auto peer = net::GetPeerCredentials(socket.get());
    if (!peer.ok()) {
      log_.Write(log::Level::kWarning, "unknown", "a connection of somebody unknown: {}",
                 peer.status());
    }
    if (peer.ok()) connection.user = peer->uid;
    connection.stranger =
        options_.is_stranger != nullptr && (!peer.ok() || options_.is_stranger(*peer));
    if (connection.stranger && ComesTooFast()) return true;
    connection.fd = socket.get();
    connection.since = Clock::Real().Now();
    if (connections_.size() >= options_.connections) {
      MakeRoom(false, "there are as many as may be");
    } else if (connection.stranger) {
      MakeRoom(true, "there are as many as may be of those without a role");
    }
    peers_.Put(connection.fd, peer.ok() ? std::optional(*peer) : std::nullopt);
    connections_.push_back(std::move(connection));
    count_ = connections_.size();
    take_(socket.Release());
    return true;
  }
  if (stopping_ || error == EAGAIN) return false;
  if (error == EINTR || error == ECONNABORTED) return true;
  const Status why = ErrnoStatus(error, "accept a connection");
  Log(why.reason(), why.ToString());
  socket.Reset();
  if (error == EMFILE || error == ENFILE) {
    // Those that wait are told that they wait in vain, and one that is open makes room.
    spare_.Reset();
    UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).Reset();
    spare_ = OpenSpare();
    if (!connections_.empty()) MakeRoom(false, "there are no descriptors for others");
  }
  std::this_thread::sleep_for(kAcceptPause);
  return false;
}

bool ControlListener::ComesTooFast() {
  const TimePoint now = Clock::Real().Now();
  if (now >= second_ + seconds(1)) {
    second_ = now;
    strangers_in_it_ = 0;
  }
  if (++strangers_in_it_ <= kStrangersPerSecond) return false;
  Log("strangers",
      "one without a role, of more than " + std::to_string(kStrangersPerSecond) + " in a second");
  return true;
}

void ControlListener::MakeRoom(bool among_strangers, const char* why) {
  std::map<std::optional<uid_t>, size_t> counts;
  size_t all = 0;
  for (const Connection& one : connections_) {
    if (among_strangers && !one.stranger) continue;
    ++counts[one.user];
    ++all;
  }
  if (among_strangers && all < kStrangers) return;
  const auto key = [&](const Connection& one) {
    const std::optional<TimePoint> last = peers_.LastCall(one.fd);
    // The most connections first, then those that never called, then by age.
    return std::make_tuple(among_strangers && !one.stranger, all - counts[one.user],
                           last.has_value(), last.value_or(one.since));
  };
  const auto loser =
      std::min_element(connections_.begin(), connections_.end(),
                       [&](const Connection& a, const Connection& b) { return key(a) < key(b); });
  ::shutdown(loser->watch.get(), SHUT_RDWR);
  const std::string whose =
      loser->user.has_value() ? "uid " + std::to_string(*loser->user) : "somebody unknown";
  Log(whose, "one of " + std::to_string(counts[loser->user]) + " of " + whose + ", of " +
                 std::to_string(all) + " in all: " + why);
  connections_.erase(loser);
  count_ = connections_.size();
}

void ControlListener::Log(const std::string& kind, const std::string& what) {
  log_.Write(log::Level::kError, kind, "a connection of the control socket closed: {}", what);
}

}  // namespace torpor::access
