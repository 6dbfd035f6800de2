// A packet of the worker socket, as net::ReceiveFrame has it, and the message in it.
//
// Input: a byte of options, then the packet.
//   bits 0-1  descriptors that come along
//   bits 2-3  what they are: nothing that is readable, unsealed, sealed with kFilePayload
//   bit 4     the header is made to agree with its packet, so that the payload is reached

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/net/frame.h"
#include "lib/wire/codec.h"
#include "lib/wire/messages.h"
#include "tests/fuzz/require.h"

namespace torpor {
namespace {

using net::FrameHeader;

UniqueFd MakeFile(const std::string& content, int seals) {
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::write(fd.get(), content.data(), content.size()) ==
          static_cast<ssize_t>(content.size()));
  REQUIRE(seals == 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

class Files {
 public:
  Files() {
    const std::string content = wire::Encode(wire::Allocate{"weights", MiB(2)});
    files_.emplace_back(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    files_.push_back(MakeFile(content, 0));
    files_.push_back(MakeFile(content, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL));
    size_ = content.size();
  }
  std::vector<UniqueFd> Take(unsigned count, unsigned kind) const {
    std::vector<UniqueFd> taken;
    for (unsigned i = 0; i < count; ++i) {
      auto copy = files_[kind % files_.size()].Duplicate();
      REQUIRE(copy.ok());
      taken.push_back(*std::move(copy));
    }
    return taken;
  }
  size_t size() const { return size_; }

 private:
  std::vector<UniqueFd> files_;
  size_t size_ = 0;
};

// What was understood comes back the same when it is said again.
template <typename Message>
void Check(const std::string& payload) {
  const auto first = wire::Decode<Message>(payload);
  if (!first.ok()) {
    REQUIRE(first.status().reason() == "BAD_FRAME");
    return;
  }
  const std::string again = wire::Encode(*first);
  const auto second = wire::Decode<Message>(again);
  REQUIRE(second.ok());
  REQUIRE(wire::Encode(*second) == again);
}

void CheckPayload(uint16_t type, const std::string& payload) {
  using wire::Answer;
  using wire::Type;
  switch (static_cast<Type>(type & ~1u)) {
    case Type::kHello:
      return type % 2 == 0 ? Check<wire::Hello>(payload) : Check<wire::HelloReply>(payload);
    case Type::kAllocate:
      return type % 2 == 0 ? Check<wire::Allocate>(payload) : Check<wire::AllocateReply>(payload);
    case Type::kAllocated:
      return type % 2 == 0 ? Check<wire::Allocated>(payload) : Check<wire::StatusReply>(payload);
    case Type::kFree:
      return type % 2 == 0 ? Check<wire::Free>(payload) : Check<wire::FreeReply>(payload);
    case Type::kFreed:
      return type % 2 == 0 ? Check<wire::Freed>(payload) : Check<wire::StatusReply>(payload);
    case Type::kSleep:
      return type % 2 == 0 ? Check<wire::Sleep>(payload) : Check<wire::SleepReply>(payload);
    case Type::kWakeUp:
      return type % 2 == 0 ? Check<wire::WakeUp>(payload) : Check<wire::SleepReply>(payload);
    case Type::kUsage:
      return type % 2 == 0 ? Check<wire::Usage>(payload) : Check<wire::UsageReply>(payload);
    case Type::kSetQuiesce:
      return type % 2 == 0 ? Check<wire::SetQuiesce>(payload) : Check<wire::StatusReply>(payload);
    case Type::kSetSleepEndpoint:
      return type % 2 == 0 ? Check<wire::SetSleepEndpoint>(payload)
                           : Check<wire::StatusReply>(payload);
    case Type::kReport:
      return type % 2 == 0 ? Check<wire::Report>(payload) : Check<wire::StatusReply>(payload);
    case Type::kQuiesce:
      return type % 2 == 0 ? Check<wire::QuiesceRequest>(payload)
                           : Check<wire::StatusReply>(payload);
    case Type::kUnmap:
      return type % 2 == 0 ? Check<wire::UnmapRequest>(payload) : Check<wire::StatusReply>(payload);
    case Type::kMap:
      return type % 2 == 0 ? Check<wire::MapRequest>(payload) : Check<wire::StatusReply>(payload);
    case Type::kResume:
      return type % 2 == 0 ? Check<wire::ResumeRequest>(payload)
                           : Check<wire::StatusReply>(payload);
    case Type::kCancel:
      return type % 2 == 0 ? Check<wire::CancelRequest>(payload)
                           : Check<wire::CancelReply>(payload);
  }
}

void Repair(std::string& packet, const std::vector<UniqueFd>& fds, size_t file_size) {
  FrameHeader header;
  if (packet.size() < sizeof header) packet.resize(sizeof header);
  std::memcpy(&header, packet.data(), sizeof header);
  header.magic = net::kFrameMagic;
  header.version = net::kFrameVersion;
  header.flags &= net::kPayloadInMemfd;
  if (fds.empty()) header.flags = 0;
  header.fd_count = static_cast<uint16_t>(fds.size() - header.flags);
  if (header.flags != 0) packet.resize(sizeof header);
  header.payload_bytes =
      static_cast<uint32_t>(header.flags != 0 ? file_size : packet.size() - sizeof header);
  std::memcpy(packet.data(), &header, sizeof header);
}

}  // namespace
}  // namespace torpor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torpor;
  static const Files* const files = new Files;
  if (size == 0 || size > net::kMaxPacketBytes) return 0;
  const unsigned options = data[0];
  std::string packet(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<UniqueFd> fds = files->Take(options & 3u, options >> 2 & 3u);
  const size_t count = fds.size();
  if ((options & 16u) != 0) Repair(packet, fds, files->size());
  const Result<net::Frame> frame = net::ParseFrame(packet, std::move(fds));
  if (!frame.ok()) {
    REQUIRE(frame.status().reason() == "BAD_FRAME" || frame.status().reason() == "WRONG_VERSION");
    return 0;
  }
  FrameHeader header;
  REQUIRE(packet.size() >= sizeof header);
  std::memcpy(&header, packet.data(), sizeof header);
  REQUIRE(frame->payload.size() == header.payload_bytes);
  REQUIRE(frame->fds.size() == header.fd_count && frame->fds.size() <= count);
  CheckPayload(frame->type, frame->payload);
  return 0;
}
