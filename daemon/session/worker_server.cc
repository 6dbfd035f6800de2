#include "daemon/session/worker_server.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <utility>
#include <vector>

#include "daemon/log.h"

namespace torpor {
namespace {

constexpr Duration kHelloTimeout = seconds(5);
constexpr Duration kSendTimeout = seconds(5);
constexpr Duration kAcceptPause = milliseconds(50);

Status SetReceiveTimeout(int socket, Duration timeout) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  const timeval value{us / 1000000, us % 1000000};
  if (::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value) != 0) {
    return ErrnoStatus(errno, "set SO_RCVTIMEO");
  }
  return Status::Ok();
}

Result<wire::Hello> ReceiveHello(int socket, uint64_t& id) {
  TORPOR_RETURN_IF_ERROR(SetReceiveTimeout(socket, kHelloTimeout));
  TORPOR_RETURN_IF_ERROR(net::SetSendTimeout(socket, kSendTimeout));
  TORPOR_ASSIGN_OR_RETURN(const net::Frame frame, net::ReceiveFrame(socket));
  TORPOR_RETURN_IF_ERROR(SetReceiveTimeout(socket, Duration::zero()));
  id = frame.id;
  if (frame.type != static_cast<uint16_t>(wire::Type::kHello) || !frame.fds.empty()) {
    return InvalidArgument("BAD_FRAME", "a connection begins with Hello")
        .With("frame_type", frame.type)
        .With("fd_count", frame.fds.size());
  }
  if (frame.payload_missing) return net::DescriptorsMissing();
  return wire::Decode<wire::Hello>(frame.payload);
}

template <typename Reply>
void Refuse(wire::Channel& channel, const net::Frame& request, Status status) {
  Reply reply;
  reply.status = std::move(status);
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

}  // namespace

Result<std::unique_ptr<WorkerServer>> WorkerServer::Start(const std::string& path, mode_t mode,
                                                          Handler& handler) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd listener, net::ListenUnix(path, mode));
  std::unique_ptr<WorkerServer> server(new WorkerServer(std::move(listener), path, handler));
  server->acceptor_ = std::thread([raw = server.get()] { raw->Accept(); });
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
    channel->End(Unavailable("DAEMON_STOPPING", "the daemon is stopping"));
  }
  open.clear();
  connections_.WaitForAll();
}

void WorkerServer::Accept() {
  for (;;) {
    Result<UniqueFd> socket = net::AcceptUnix(listener_.get());
    if (socket.ok()) {
      connections_.Run([this, fd = std::make_shared<UniqueFd>(*std::move(socket))] {
        Serve(std::move(*fd));
      });
      continue;
    }
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    // Out of descriptors or memory: what is queued stays queued.
    log::Error("cannot accept workers: {}", socket.status());
    std::this_thread::sleep_for(kAcceptPause);
  }
}

void WorkerServer::Serve(UniqueFd socket) {
  const auto peer = net::GetPeerCredentials(socket.get());
  uint64_t hello_id = 0;
  const auto hello = ReceiveHello(socket.get(), hello_id);
  const auto channel = std::make_shared<wire::Channel>(std::move(socket), "WORKER_GONE");
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    channels_[channel.get()] = channel;
  }
  Result<wire::HelloReply> reply = !peer.ok()    ? Result<wire::HelloReply>(peer.status())
                                   : !hello.ok() ? Result<wire::HelloReply>(hello.status())
                                                 : handler_.OnHello(*hello, *peer, channel);
  constexpr auto kHello = static_cast<uint16_t>(wire::Type::kHello);
  if (!reply.ok()) {
    log::Warning("connection of pid {} refused: {}", peer.ok() ? peer->pid : 0, reply.status());
    wire::HelloReply refusal;
    refusal.status = reply.status();
    (void)channel->Answer(kHello, hello_id, refusal);
  } else {
    const WorkerId worker = reply->worker;
    Status why = channel->Answer(kHello, hello_id, *reply);
    if (why.ok()) {
      struct Forward final : wire::Channel::Handler {
        WorkerServer::Handler& handler;
        WorkerId worker;
        std::shared_ptr<wire::Channel> channel;
        Forward(WorkerServer::Handler& h, WorkerId w, std::shared_ptr<wire::Channel> c)
            : handler(h), worker(w), channel(std::move(c)) {}
        void OnRequest(net::Frame request) override {
          if (request.payload_missing) {
            log::Warning("worker w-{}: a request is refused: {}", worker.value(),
                         net::DescriptorsMissing());
            return RefuseUnread(*channel, request);
          }
          handler.OnRequest(worker, channel, std::move(request));
        }
      } forward(handler_, worker, channel);
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
