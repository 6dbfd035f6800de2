#include "daemon/session/worker_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "daemon/stopping.h"
#include "lib/base/descriptors.h"

namespace torpor {
namespace {

constexpr Duration kHelloTimeout = seconds(5);
constexpr Duration kSendTimeout = seconds(5);
// What a connection has to say Hello before it can lose its place to another.
constexpr Duration kPlace = milliseconds(100);
constexpr Duration kAcceptPause = milliseconds(50);
constexpr auto kHello = static_cast<uint16_t>(wire::Type::kHello);

bool OutOfDescriptors(const Status& status) {
  return status.reason() == "FILE_DESCRIPTORS_EXHAUSTED";
}

UniqueFd OpenSpare() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void RefuseHello(wire::Channel& channel, uint64_t hello_id, const Status& why) {
  wire::HelloReply refusal;
  refusal.status = why;
  (void)channel.Answer(kHello, hello_id, refusal);
}

// Before it has been read from.
void RefuseHello(UniqueFd socket, const Status& why) {
  // What is left unread would take the answer with it.
  char hello = 0;
  (void)::recv(socket.get(), &hello, sizeof hello, MSG_DONTWAIT);
  wire::Channel channel(std::move(socket), "WORKER_GONE");
  RefuseHello(channel, 0, why);
}

Result<wire::Hello> ReceiveHello(int socket, uint64_t& id) {
  TORPOR_ASSIGN_OR_RETURN(const net::Frame frame, net::ReceiveFrame(socket));
  id = frame.id;
  if (frame.type != kHello || !frame.fds.empty()) {
    return InvalidArgument("BAD_FRAME", "a connection begins with Hello")
        .With("frame_type", frame.type)
        .With("fd_count", frame.fds.size());
  }
  if (frame.payload_missing) return net::DescriptorsMissing();
  return wire::Decode<wire::Hello>(frame.payload);
}

template <typename Reply>
void Refuse(wire::Channel& channel, const net::Frame& request, const Status& status) {
  Reply reply;
  reply.status = status;
  (void)channel.Answer(request.type, request.id, reply);
}

// For a request that cannot be read.
void RefuseUnread(wire::Channel& channel, const net::Frame& request) {
  const Status status = net::DescriptorsMissing();
  switch (static_cast<wire::Type>(request.type)) {
    case wire::Type::kAllocate:
      return Refuse<wire::AllocateReply>(channel, request, status);
    case wire::Type::kFree:
      return Refuse<wire::FreeReply>(channel, request, status);
    case wire::Type::kSleep:
    case wire::Type::kWakeUp:
      return Refuse<wire::SleepReply>(channel, request, status);
    case wire::Type::kUsage:
      return Refuse<wire::UsageReply>(channel, request, status);
    default:
      return Refuse<wire::StatusReply>(channel, request, status);
  }
}

int PollTimeout(TimePoint now, TimePoint until) {
  const auto ms = std::chrono::duration_cast<milliseconds>(until - now).count() + 1;
  return static_cast<int>(std::max<int64_t>(0, ms));
}

}  // namespace

Result<std::unique_ptr<WorkerServer>> WorkerServer::Start(const std::string& path, mode_t mode,
                                                          Handler& handler, const Limits& limits,
                                                          std::optional<gid_t> group) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd listener, net::ListenUnix(path, mode, group));
  std::unique_ptr<WorkerServer> server(
      new WorkerServer(std::move(listener), path, handler, limits));
  server->spare_ = OpenSpare();
  TORPOR_ASSIGN_OR_RETURN(server->acceptor_, StartThread([raw = server.get()] { raw->Accept(); }));
  return server;
}

WorkerServer::~WorkerServer() {
  ::unlink(path_.c_str());
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  ::shutdown(listener_.get(), SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  std::vector<std::shared_ptr<wire::Channel>> open;
  {
    MutexLock lock(mutex_);
    for (const auto& [raw, weak] : channels_) {
      if (auto channel = weak.lock()) open.push_back(std::move(channel));
    }
  }
  for (const auto& channel : open) {
    channel->End(DaemonStopping());
  }
  open.clear();
  connections_.WaitForAll();
}

void WorkerServer::Accept() {
  std::vector<pollfd> polled;
  for (;;) {
    TimePoint now = Clock::Real().Now();
    while (!silent_.empty() && now >= silent_.front().since + kHelloTimeout) {
      DropOldest("the connection said nothing");
    }
    const bool full = silent_.size() >= limits_.silent;
    const bool take = !full || now >= silent_.front().since + kPlace;
    // A negative descriptor is passed over.
    polled.assign(1, {take ? listener_.get() : -1, POLLIN, 0});
    for (const Silent& one : silent_) polled.push_back({one.socket.get(), POLLIN, 0});
    const int timeout =
        silent_.empty() ? -1
                        : PollTimeout(now, silent_.front().since + (take ? kHelloTimeout : kPlace));
    if (::poll(polled.data(), polled.size(), timeout) < 0) {
      if (errno != EINTR) std::this_thread::sleep_for(kAcceptPause);
      continue;
    }
    std::deque<Silent> still;
    std::vector<UniqueFd> speaking;
    for (size_t i = 0; i < silent_.size(); ++i) {
      if (polled[i + 1].revents == 0) {
        still.push_back(std::move(silent_[i]));
      } else {
        speaking.push_back(std::move(silent_[i].socket));
      }
    }
    silent_ = std::move(still);
    for (UniqueFd& socket : speaking) Greet(std::move(socket));
    if (polled[0].revents == 0) {
      MutexLock lock(mutex_);
      if (stopping_) return;
      continue;
    }
    if (silent_.size() >= limits_.silent) DropOldest("others came");
    if (!AcceptOne()) return;
  }
}

bool WorkerServer::AcceptOne() {
  if (!spare_.valid()) spare_ = OpenSpare();
  Result<UniqueFd> socket = net::AcceptUnix(listener_.get());
  if (socket.ok()) {
    const Status set = net::SetSendTimeout(socket->get(), kSendTimeout);
    if (!set.ok()) {
      LogRefusal(set);
      return true;
    }
    silent_.push_back({*std::move(socket), Clock::Real().Now()});
    return true;
  }
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
  }
  const Status why = socket.status();
  LogRefusal(why);
  if (OutOfDescriptors(why) && !silent_.empty()) {
    DropOldest("there are no descriptors for others");
    return true;
  }
  if (OutOfDescriptors(why) && spare_.valid()) {
    spare_.Reset();
    if (socket = net::AcceptUnix(listener_.get()); socket.ok())
      RefuseHello(*std::move(socket), why);
    spare_ = OpenSpare();
    if (spare_.valid()) return true;
  }
  // What is queued stays queued.
  std::this_thread::sleep_for(kAcceptPause);
  return true;
}

void WorkerServer::DropOldest(const char* why) {
  const Status silent = DeadlineExceeded("PEER_SILENT", std::string("no Hello in time: ") + why);
  RefuseHello(std::move(silent_.front().socket), silent);
  silent_.pop_front();
  LogRefusal(silent);
}

void WorkerServer::LogRefusal(const Status& why) {
  log_limit_.Write(log::Level::kError, why.reason(), "a worker's connection refused: {}", why);
}

void WorkerServer::Greet(UniqueFd socket) {
  Greeting greeting{wire::Hello(), 0};
  greeting.hello = ReceiveHello(socket.get(), greeting.id);
  // Who hangs up without a word has looked whether a daemon is there.
  if (greeting.hello.status().reason() == "CONNECTION_CLOSED") return;
  const auto peer = net::GetPeerCredentials(socket.get());
  if (!peer.ok()) greeting.hello = peer.status();
  const net::PeerCredentials credentials = peer.ok() ? *peer : net::PeerCredentials();
  const auto channel = std::make_shared<wire::Channel>(std::move(socket), "WORKER_GONE");
  Status why = greeting.hello.status();
  if (why.ok()) why = RequireDescriptors(CountDescriptors(), limits_.descriptors);
  if (why.ok()) why = Enter(channel);
  if (why.ok()) {
    why = connections_.Run(
        [this, channel, credentials, greeting] { Serve(channel, credentials, greeting); });
    if (why.ok()) return;
    MutexLock lock(mutex_);
    channels_.erase(channel.get());
  }
  RefuseHello(*channel, greeting.id, why);
  LogRefusal(why);
}

Status WorkerServer::Enter(const std::shared_ptr<wire::Channel>& channel) {
  MutexLock lock(mutex_);
  if (stopping_) return DaemonStopping();
  if (channels_.size() >= limits_.workers) {
    return ResourceExhausted("TOO_MANY_WORKERS",
                             "the daemon serves as many workers as it takes at a time")
        .With("workers", channels_.size());
  }
  channels_[channel.get()] = channel;
  return Status::Ok();
}

void WorkerServer::Serve(const std::shared_ptr<wire::Channel>& channel,
                         const net::PeerCredentials& peer, const Greeting& greeting) {
  const Result<wire::HelloReply> reply = handler_.OnHello(*greeting.hello, peer, channel);
  if (!reply.ok()) {
    log_limit_.Write(
        log::Level::kWarning, "uid " + std::to_string(peer.uid) + ' ' + reply.status().reason(),
        "connection of pid {}, uid {} refused: {}", peer.pid, peer.uid, reply.status());
    RefuseHello(*channel, greeting.id, reply.status());
  } else {
    const WorkerId worker = reply->worker;
    Status why = channel->Answer(kHello, greeting.id, *reply);
    if (why.ok()) {
      struct Forward final : wire::Channel::Handler {
        WorkerServer::Handler& handler;
        WorkerId worker;
        std::shared_ptr<wire::Channel> channel;
        log::Limit& limit;
        Forward(WorkerServer::Handler& h, WorkerId w, std::shared_ptr<wire::Channel> c,
                log::Limit& l)
            : handler(h), worker(w), channel(std::move(c)), limit(l) {}
        void OnRequest(net::Frame request) override {
          if (request.payload_missing) {
            limit.Write(log::Level::kWarning, "w-" + std::to_string(worker.value()),
                        "worker w-{}: a request is refused: {}", worker.value(),
                        net::DescriptorsMissing());
            return RefuseUnread(*channel, request);
          }
          handler.OnRequest(worker, channel, std::move(request));
        }
      } forward(handler_, worker, channel, log_limit_);
      handler_.OnWelcomed(worker);
      why = channel->Run(forward);
    } else {
      channel->End(why);
    }
    handler_.OnGone(worker, why);
  }
  MutexLock lock(mutex_);
  channels_.erase(channel.get());
}

}  // namespace torpor
