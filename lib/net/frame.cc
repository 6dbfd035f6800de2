#include "lib/net/frame.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace torpor::net {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

Result<UniqueFd> SealedPayload(const std::string& payload) {
  UniqueFd fd(::memfd_create("torpor-frame", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create for a frame");
  size_t done = 0;
  while (done < payload.size()) {
    const ssize_t n = ::write(fd.get(), payload.data() + done, payload.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write a frame's payload");
    done += static_cast<size_t>(n);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus(errno, "seal a payload");
  return fd;
}

Status BadFrame(const std::string& what) { return InvalidArgument("BAD_FRAME", what); }

Result<std::string> ReadSealedPayload(const UniqueFd& fd, size_t size) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return BadFrame("the payload's file is not sealed");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "stat a payload");
  if (static_cast<size_t>(info.st_size) != size) {
    return BadFrame("the payload's file has another size than the header says");
  }
  std::string payload(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n =
        ::pread(fd.get(), payload.data() + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return BadFrame("the payload cannot be read");
    done += static_cast<size_t>(n);
  }
  return payload;
}

}  // namespace

Status DescriptorsMissing() {
  return ResourceExhausted("FILE_DESCRIPTORS_EXHAUSTED",
                           "no room for the file descriptors of a message");
}

Status SendFrame(int socket, uint16_t type, uint64_t id, const std::string& payload,
                 const std::vector<int>& fds) {
  if (payload.size() > kMaxPayloadBytes || fds.size() > kMaxFrameFds) {
    return InvalidArgument("FRAME_TOO_LARGE", "a frame is over its limits")
        .With("payload_bytes", payload.size())
        .With("fd_count", fds.size());
  }
  FrameHeader header;
  header.type = type;
  header.id = id;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.fd_count = static_cast<uint16_t>(fds.size());
  std::vector<int> all_fds = fds;
  UniqueFd payload_fd;
  const bool in_memfd = sizeof header + payload.size() > kMaxPacketBytes;
  if (in_memfd) {
    TORPOR_ASSIGN_OR_RETURN(payload_fd, SealedPayload(payload));
    header.flags |= kPayloadInMemfd;
    all_fds.push_back(payload_fd.get());
  }
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = in_memfd || payload.empty() ? 1 : 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (kMaxFrameFds + 1))];
  if (!all_fds.empty()) {
    const size_t fd_bytes = all_fds.size() * sizeof(int);
    std::memset(control, 0, CMSG_SPACE(fd_bytes));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fd_bytes);
    std::memcpy(CMSG_DATA(rights), all_fds.data(), fd_bytes);
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return Status::Ok();
    if (errno != EINTR) return ErrnoStatus(errno, "send a frame");
  }
}

Result<Frame> ParseFrame(std::string_view packet, std::vector<UniqueFd> fds, bool cut_off) {
  FrameHeader header;
  if (packet.size() < sizeof header) {
    return std::move(BadFrame("the packet is too short for a header"))
        .With("packet_bytes", packet.size());
  }
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.magic != kFrameMagic) {
    return BadFrame("the packet does not start with a frame's magic");
  }
  if (header.version != kFrameVersion) {
    return InvalidArgument("WRONG_VERSION", "the peer speaks another version of the protocol")
        .With("version", header.version)
        .With("supported_version", kFrameVersion);
  }
  const bool in_memfd = (header.flags & kPayloadInMemfd) != 0;
  const std::string_view body = packet.substr(sizeof header);
  if (header.payload_bytes > kMaxPayloadBytes ||
      body.size() != (in_memfd ? 0 : header.payload_bytes)) {
    return std::move(BadFrame("the payload's length does not agree with the packet's"))
        .With("payload_bytes", header.payload_bytes)
        .With("packet_bytes", packet.size());
  }
  const size_t sent_fds = header.fd_count + (in_memfd ? 1u : 0u);
  if (cut_off ? fds.size() >= sent_fds || header.fd_count > kMaxFrameFds : fds.size() != sent_fds) {
    return std::move(BadFrame("another number of descriptors than the header says"))
        .With("fd_count", header.fd_count)
        .With("received_fds", fds.size());
  }
  Frame frame;
  frame.type = header.type;
  frame.id = header.id;
  if (cut_off) {
    frame.fds.resize(header.fd_count);
    frame.fds_missing = header.fd_count > 0;
    frame.payload_missing = in_memfd;
    frame.payload.assign(body);
    return frame;
  }
  if (in_memfd) {
    TORPOR_ASSIGN_OR_RETURN(frame.payload, ReadSealedPayload(fds.back(), header.payload_bytes));
    fds.pop_back();
  } else {
    frame.payload.assign(body);
  }
  frame.fds = std::move(fds);
  return frame;
}

Result<Frame> ReceiveFrame(int socket) {
  std::string packet(kMaxPacketBytes, '\0');
  iovec part{packet.data(), packet.size()};
  // Room for the most that the kernel passes at once, so that too many are counted, not cut off.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return ErrnoStatus(errno, "receive a frame");
  std::vector<UniqueFd> fds;
  for (cmsghdr* part_header = CMSG_FIRSTHDR(&message); part_header != nullptr;
       part_header = CMSG_NXTHDR(&message, part_header)) {
    if (part_header->cmsg_level != SOL_SOCKET || part_header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part_header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part_header) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (size == 0 && fds.empty() && (message.msg_flags & MSG_CTRUNC) == 0) {
    return Unavailable("CONNECTION_CLOSED", "the peer closed the connection");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return std::move(BadFrame("the packet is too long")).With("limit_bytes", kMaxPacketBytes);
  }
  return ParseFrame(std::string_view(packet).substr(0, static_cast<size_t>(size)), std::move(fds),
                    (message.msg_flags & MSG_CTRUNC) != 0);
}

}  // namespace torpor::net
