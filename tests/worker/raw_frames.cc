#include "tests/worker/raw_frames.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/messages.h"

namespace torpor {
namespace {

constexpr int kPatienceMs = 2000;

struct Packet {
  net::FrameHeader header;
  std::string payload;
  std::vector<UniqueFd> fds;
  size_t cut_to = SIZE_MAX;
};

UniqueFd SomeFile() {
  UniqueFd fd(::memfd_create("bad_frame", MFD_CLOEXEC));
  (void)!::write(fd.get(), "0123456789abcdef", 16);
  return fd;
}

bool MakePacket(const std::string& kind, Packet& packet) {
  packet.header.type = static_cast<uint16_t>(wire::Type::kUsage);
  packet.header.id = 77;
  packet.payload = wire::Encode(wire::Usage{});
  packet.header.payload_bytes = static_cast<uint32_t>(packet.payload.size());
  if (kind == "empty") {
    packet.cut_to = 0;
    packet.fds.push_back(SomeFile());  // or it would be no packet at all
  } else if (kind == "short") {
    packet.cut_to = 10;
  } else if (kind == "long") {
    packet.payload = std::string(net::kMaxPacketBytes, 'x');
    packet.header.payload_bytes = static_cast<uint32_t>(packet.payload.size());
  } else if (kind == "magic") {
    packet.header.magic = 0x20545447;
  } else if (kind == "version") {
    packet.header.version = 0x7fff;
  } else if (kind == "length") {
    packet.header.payload_bytes += 1;
  } else if (kind == "huge") {
    packet.header.payload_bytes = 0xffffffff;
  } else if (kind == "fds") {
    for (int i = 0; i < 5; ++i) packet.fds.push_back(SomeFile());
  } else if (kind == "fewer_fds") {
    packet.header.fd_count = 5;
    packet.fds.push_back(SomeFile());
  } else if (kind == "unsealed") {
    packet.header.flags = net::kPayloadInMemfd;
    packet.header.payload_bytes = 16;
    packet.payload.clear();
    packet.fds.push_back(SomeFile());
  } else if (kind == "payload") {
    packet.header.type = static_cast<uint16_t>(wire::Type::kAllocate);
    packet.payload = std::string(64, '\xff');
    packet.header.payload_bytes = 64;
  } else if (kind == "type") {
    packet.header.type = 0x7ff0;
  } else if (kind == "answer") {
    packet.header.type = wire::Answer(wire::Type::kMap);
  } else {
    return false;
  }
  return true;
}

Status Send(int socket, const Packet& packet) {
  std::string bytes(reinterpret_cast<const char*>(&packet.header), sizeof packet.header);
  bytes = (bytes + packet.payload).substr(0, packet.cut_to);
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const size_t fd_bytes = packet.fds.size() * sizeof(int);
  std::string control(CMSG_SPACE(fd_bytes), '\0');
  if (!packet.fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fd_bytes);
    for (size_t i = 0; i < packet.fds.size(); ++i) {
      const int fd = packet.fds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) return ErrnoStatus(errno, "send");
  return Status::Ok();
}

Result<net::Frame> Receive(int socket) {
  pollfd readable{socket, POLLIN, 0};
  if (::poll(&readable, 1, kPatienceMs) == 0) return DeadlineExceeded("SILENT", "no answer");
  return net::ReceiveFrame(socket);
}

Result<std::string> Try(const std::string& path, const std::string& kind, bool after_hello) {
  Packet packet;
  if (!MakePacket(kind, packet)) return InvalidArgument("BAD_KIND", "no such bad frame: " + kind);
  TORPOR_ASSIGN_OR_RETURN(const UniqueFd socket, net::ConnectUnix(path));
  if (after_hello) {
    TORPOR_RETURN_IF_ERROR(net::SendFrame(socket.get(), static_cast<uint16_t>(wire::Type::kHello),
                                          1, wire::Encode(wire::Hello{})));
    TORPOR_ASSIGN_OR_RETURN(const net::Frame answer, Receive(socket.get()));
    TORPOR_ASSIGN_OR_RETURN(const wire::HelloReply reply,
                            wire::Decode<wire::HelloReply>(answer.payload));
    TORPOR_RETURN_IF_ERROR(reply.status);
  }
  TORPOR_RETURN_IF_ERROR(Send(socket.get(), packet));
  const Result<net::Frame> answer = Receive(socket.get());
  if (answer.ok() && answer->type == wire::Answer(wire::Type::kHello)) {
    TORPOR_ASSIGN_OR_RETURN(const wire::HelloReply reply,
                            wire::Decode<wire::HelloReply>(answer->payload));
    return "refused " + reply.status.reason();
  }
  if (answer.ok()) return "answered " + std::to_string(answer->type);
  if (answer.status().reason() == "SILENT") return std::string("silent");
  if (answer.status().code() == Code::kUnavailable) return std::string("closed");
  return answer.status();
}

Result<int64_t> Hold(const std::string& path, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(const UniqueFd socket, net::ConnectUnix(path));
  TORPOR_RETURN_IF_ERROR(net::SendFrame(socket.get(), static_cast<uint16_t>(wire::Type::kHello), 1,
                                        wire::Encode(wire::Hello{})));
  TORPOR_RETURN_IF_ERROR(Receive(socket.get()).status());
  TORPOR_RETURN_IF_ERROR(net::SendFrame(socket.get(), static_cast<uint16_t>(wire::Type::kAllocate),
                                        2, wire::Encode(wire::Allocate{"weights", size})));
  TORPOR_ASSIGN_OR_RETURN(net::Frame answer, Receive(socket.get()));
  TORPOR_ASSIGN_OR_RETURN(const wire::AllocateReply reply,
                          wire::Decode<wire::AllocateReply>(answer.payload));
  TORPOR_RETURN_IF_ERROR(reply.status);
  static auto* const held = new std::vector<UniqueFd>();
  for (UniqueFd& fd : answer.fds) held->push_back(std::move(fd));
  return static_cast<int64_t>(held->size());
}

}  // namespace

std::string HoldMemory(const std::string& path, Bytes size) {
  const Result<int64_t> held = Hold(path, size);
  return held.ok() ? "ok " + std::to_string(*held) : "error " + held.status().ToString();
}

std::string SendBadFrame(const std::string& path, const std::string& kind, bool after_hello) {
  const Result<std::string> outcome = Try(path, kind, after_hello);
  return outcome.ok() ? "ok " + *outcome : "error " + outcome.status().ToString();
}

}  // namespace torpor
