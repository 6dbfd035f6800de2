#ifndef TORPOR_LIB_NET_FRAME_H_
#define TORPOR_LIB_NET_FRAME_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor::net {

constexpr uint32_t kFrameMagic = 0x52505254;  // "TRPR"
// Of the frames and of all messages in them (lib/wire/messages.h): another one whenever any of them
// changes, since a decoder takes no message with a field more or less.
constexpr uint16_t kFrameVersion = 5;
// One packet on the socket: header and payload. A larger payload travels as a sealed memfd.
constexpr size_t kMaxPacketBytes = 64 << 10;
constexpr size_t kMaxPayloadBytes = 16 << 20;
// The kernel's SCM_MAX_FD is 253; one is kept for a payload's memfd.
constexpr size_t kMaxFrameFds = 250;

// Wire layout of a packet's first bytes, little-endian.
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kFrameVersion;
  uint16_t type = 0;
  uint64_t id = 0;             // chosen by the asker; an answer repeats it
  uint32_t payload_bytes = 0;  // in the packet or, with kPayloadInMemfd, in the last descriptor
  uint16_t fd_count = 0;       // without a payload's memfd
  uint16_t flags = 0;
};
static_assert(sizeof(FrameHeader) == 24);

constexpr uint16_t kPayloadInMemfd = 1;

struct Frame {
  uint16_t type = 0;
  uint64_t id = 0;
  std::string payload;
  std::vector<UniqueFd> fds;
  // This process had no room for the descriptors that came along: `fds` has as many as were sent,
  // all of them invalid, and `payload` is empty if it travelled as a memfd (`payload_missing`).
  bool fds_missing = false;
  bool payload_missing = false;
};

// RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED: what a frame that lacks its descriptors is refused
// with. The stream goes on.
Status DescriptorsMissing();

// Sends one frame on a SOCK_SEQPACKET socket; `fds` are borrowed. Blocks while the socket's buffer
// is full, at most for the socket's SO_SNDTIMEO. Concurrent senders need a lock of their own.
//   INVALID_ARGUMENT FRAME_TOO_LARGE: over kMaxPayloadBytes or kMaxFrameFds; nothing was sent
//   UNAVAILABLE: the peer is gone
Status SendFrame(int socket, uint16_t type, uint64_t id, const std::string& payload,
                 const std::vector<int>& fds = {});

// The frame in one packet and the descriptors that came with it.
//   INVALID_ARGUMENT BAD_FRAME (too short, wrong magic, lengths or descriptor counts that do not
//   agree, an unsealed payload) or WRONG_VERSION: all of `fds` are closed.
// `cut_off`: the kernel passed fewer than were sent, for lack of room in this process.
Result<Frame> ParseFrame(std::string_view packet, std::vector<UniqueFd> fds, bool cut_off = false);

// Receives one frame; blocks, at most for the socket's SO_RCVTIMEO.
//   UNAVAILABLE CONNECTION_CLOSED: end of stream
//   INVALID_ARGUMENT, as ParseFrame, or BAD_FRAME for a packet that is too long: the stream cannot
//   be trusted any more
Result<Frame> ReceiveFrame(int socket);

}  // namespace torpor::net

#endif  // TORPOR_LIB_NET_FRAME_H_
