#include "lib/net/frame.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor::net {
namespace {

int OpenDescriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

UniqueFd MemFile(const std::string& content, int seals) {
  UniqueFd fd(::memfd_create("frame_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

class FrameTest : public testing::Test {
 protected:
  FrameTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    sender_ = UniqueFd(ends[0]);
    receiver_ = UniqueFd(ends[1]);
  }

  // Sends a packet as a hostile peer would, by hand.
  void SendRaw(const std::string& packet, const std::vector<int>& fds = {}) {
    iovec part{const_cast<char*>(packet.data()), packet.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::string control(CMSG_SPACE(fds.size() * sizeof(int)), '\0');
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_EQ(::sendmsg(sender_.get(), &message, 0), static_cast<ssize_t>(packet.size()));
  }

  static std::string Packet(const FrameHeader& header, const std::string& payload = "") {
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
  }

  void ExpectRefused(const char* reason) {
    EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason(reason));
    EXPECT_EQ(OpenDescriptors(), descriptors_);
  }

  UniqueFd sender_;
  UniqueFd receiver_;
  const int descriptors_ = OpenDescriptors() + 2;  // with the socket pair
};

TEST_F(FrameTest, RoundTrip) {
  ASSERT_THAT(SendFrame(sender_.get(), 0x110, 77, "payload"), IsOk());
  const auto frame = ReceiveFrame(receiver_.get());
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->type, 0x110);
  EXPECT_EQ(frame->id, 77u);
  EXPECT_EQ(frame->payload, "payload");
  EXPECT_TRUE(frame->fds.empty());
}

TEST_F(FrameTest, RoundTripWithoutPayload) {
  ASSERT_THAT(SendFrame(sender_.get(), 1, 2, ""), IsOk());
  const auto frame = ReceiveFrame(receiver_.get());
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->payload, "");
}

TEST_F(FrameTest, DescriptorsArriveInOrderAndCloseOnExec) {
  const UniqueFd first = MemFile("first", 0);
  const UniqueFd second = MemFile("second!", 0);
  ASSERT_THAT(SendFrame(sender_.get(), 1, 2, "x", {first.get(), second.get()}), IsOk());
  const auto frame = ReceiveFrame(receiver_.get());
  ASSERT_THAT(frame, IsOk());
  ASSERT_EQ(frame->fds.size(), 2u);
  struct stat info {};
  ::fstat(frame->fds[1].get(), &info);
  EXPECT_EQ(info.st_size, 7);
  EXPECT_EQ(::fcntl(frame->fds[0].get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(FrameTest, LargePayloadsTravelAsAFile) {
  for (const size_t size : {kMaxPacketBytes - sizeof(FrameHeader),
                            kMaxPacketBytes - sizeof(FrameHeader) + 1, kMaxPayloadBytes}) {
    const UniqueFd fd = MemFile("x", 0);
    std::string payload(size, 'p');
    payload.back() = 'q';
    ASSERT_THAT(SendFrame(sender_.get(), 1, 2, payload, {fd.get()}), IsOk());
    const auto frame = ReceiveFrame(receiver_.get());
    ASSERT_THAT(frame, IsOk());
    EXPECT_EQ(frame->payload, payload);
    EXPECT_EQ(frame->fds.size(), 1u);
  }
}

TEST_F(FrameTest, AsManyDescriptorsAsAllowed) {
  const UniqueFd fd = MemFile("x", 0);
  const std::vector<int> fds(kMaxFrameFds, fd.get());
  ASSERT_THAT(SendFrame(sender_.get(), 1, 2, std::string(kMaxPacketBytes, 'p'), fds), IsOk());
  const auto frame = ReceiveFrame(receiver_.get());
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->fds.size(), kMaxFrameFds);
}

TEST_F(FrameTest, NothingOverTheLimitsIsSent) {
  EXPECT_THAT(SendFrame(sender_.get(), 1, 2, std::string(kMaxPayloadBytes + 1, 'p')),
              HasReason("FRAME_TOO_LARGE"));
  EXPECT_THAT(SendFrame(sender_.get(), 1, 2, "", std::vector<int>(kMaxFrameFds + 1, 0)),
              HasReason("FRAME_TOO_LARGE"));
  ASSERT_THAT(SendFrame(sender_.get(), 1, 3, ""), IsOk());
  const auto frame = ReceiveFrame(receiver_.get());
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->id, 3u);
}

TEST_F(FrameTest, EndOfStream) {
  sender_.Reset();
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("CONNECTION_CLOSED"));
}

TEST_F(FrameTest, SendingToNobody) {
  receiver_.Reset();
  EXPECT_THAT(SendFrame(sender_.get(), 1, 2, "x"), HasCode(Code::kUnavailable));
}

TEST_F(FrameTest, TooShort) {
  SendRaw("TRPR");
  ExpectRefused("BAD_FRAME");
  SendRaw(Packet({}).substr(0, sizeof(FrameHeader) - 1));
  ExpectRefused("BAD_FRAME");
}

TEST_F(FrameTest, TooLong) {
  FrameHeader header;
  header.payload_bytes = kMaxPacketBytes;
  SendRaw(Packet(header, std::string(kMaxPacketBytes, 'p')));
  ExpectRefused("BAD_FRAME");
}

TEST_F(FrameTest, WrongMagic) {
  FrameHeader header;
  header.magic = 0x46464646;
  SendRaw(Packet(header));
  ExpectRefused("BAD_FRAME");
}

TEST_F(FrameTest, WrongVersion) {
  FrameHeader header;
  header.version = kFrameVersion + 1;
  SendRaw(Packet(header));
  const auto frame = ReceiveFrame(receiver_.get());
  EXPECT_THAT(frame, HasReason("WRONG_VERSION"));
  EXPECT_EQ(frame.status().Number("version"), kFrameVersion + 1);
  EXPECT_EQ(frame.status().Number("supported_version"), kFrameVersion);
}

TEST_F(FrameTest, LengthsThatDoNotAgree) {
  FrameHeader header;
  header.payload_bytes = 5;
  SendRaw(Packet(header, "four"));
  ExpectRefused("BAD_FRAME");
  header.payload_bytes = 3;
  SendRaw(Packet(header, "four"));
  ExpectRefused("BAD_FRAME");
  header.payload_bytes = 0xffffffff;
  SendRaw(Packet(header, "four"));
  ExpectRefused("BAD_FRAME");
}

TEST_F(FrameTest, DescriptorsThatTheHeaderDoesNotCount) {
  const UniqueFd fd = MemFile("x", 0);
  const int before = OpenDescriptors();
  SendRaw(Packet({}), {fd.get(), fd.get()});
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));
  FrameHeader header;
  header.fd_count = 3;
  SendRaw(Packet(header), {fd.get(), fd.get()});
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));
  SendRaw(Packet(header), std::vector<int>(253, fd.get()));
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));
  SendRaw("", {fd.get()});
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(FrameTest, PayloadFileMustBeSealedAndOfItsSize) {
  const std::string content(100, 'p');
  FrameHeader header;
  header.payload_bytes = 100;
  header.flags = kPayloadInMemfd;
  const struct {
    int seals;
    uint32_t bytes;
  } bad[] = {{0, 100},
             {F_SEAL_SHRINK | F_SEAL_GROW, 100},
             {F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, 100},  // seals could still be added
             {kAllSeals, 99},
             {kAllSeals, 101}};
  for (const auto& [seals, bytes] : bad) {
    const UniqueFd fd = MemFile(content, seals);
    header.payload_bytes = bytes;
    SendRaw(Packet(header), {fd.get()});
    EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME")) << seals << " " << bytes;
  }
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd read_end(pipe_ends[0]);
  const UniqueFd write_end(pipe_ends[1]);
  header.payload_bytes = 100;
  SendRaw(Packet(header), {read_end.get()});
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));

  SendRaw(Packet(header));  // the file is missing
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));

  const UniqueFd good = MemFile(content, kAllSeals);
  SendRaw(Packet(header, "a payload as well"), {good.get()});
  EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME"));
  SendRaw(Packet(header), {good.get()});
  const auto frame = ReceiveFrame(receiver_.get());
  ASSERT_THAT(frame, IsOk());
  EXPECT_EQ(frame->payload, content);
}

// Lets this process have `room` more descriptors.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int room) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<UniqueFd> next(static_cast<size_t>(room) + 1);
    for (UniqueFd& fd : next) fd.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit limited = before_;
    limited.rlim_cur = static_cast<rlim_t>(next.back().get());
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limited), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST_F(FrameTest, AFrameWithoutRoomForItsDescriptorsIsMarkedAndTheStreamGoesOn) {
  const UniqueFd fd = MemFile("x", 0);
  for (const int room : {0, 1, 4}) {
    ASSERT_THAT(SendFrame(sender_.get(), 7, 8, "x", std::vector<int>(5, fd.get())), IsOk());
    ASSERT_THAT(SendFrame(sender_.get(), 9, 10, "next"), IsOk());
    const int before = OpenDescriptors();
    const DescriptorLimit limit(room);
    const auto frame = ReceiveFrame(receiver_.get());
    ASSERT_THAT(frame, IsOk());
    EXPECT_EQ(frame->type, 7);
    EXPECT_EQ(frame->id, 8u);
    EXPECT_EQ(frame->payload, "x");
    EXPECT_TRUE(frame->fds_missing);
    EXPECT_FALSE(frame->payload_missing);
    ASSERT_EQ(frame->fds.size(), 5u);
    for (const UniqueFd& missing : frame->fds) EXPECT_FALSE(missing.valid());
    EXPECT_EQ(OpenDescriptors(), before);
    const auto next = ReceiveFrame(receiver_.get());
    ASSERT_THAT(next, IsOk());
    EXPECT_EQ(next->payload, "next");
    EXPECT_FALSE(next->fds_missing);
  }
}

TEST_F(FrameTest, APayloadWithoutRoomForItsFileIsMarked) {
  const UniqueFd fd = MemFile("x", 0);
  for (const size_t count : {0, 2}) {
    ASSERT_THAT(SendFrame(sender_.get(), 7, 8, std::string(kMaxPacketBytes, 'p'),
                          std::vector<int>(count, fd.get())),
                IsOk());
    const int before = OpenDescriptors();
    const DescriptorLimit limit(static_cast<int>(count));
    const auto frame = ReceiveFrame(receiver_.get());
    ASSERT_THAT(frame, IsOk());
    EXPECT_EQ(frame->id, 8u);
    EXPECT_EQ(frame->payload, "");
    EXPECT_TRUE(frame->payload_missing);
    EXPECT_EQ(frame->fds_missing, count > 0);
    EXPECT_EQ(frame->fds.size(), count);
    EXPECT_EQ(OpenDescriptors(), before);
  }
}

TEST_F(FrameTest, MoreDescriptorsThanTheHeaderSaysAreALieEvenWithoutRoom) {
  const UniqueFd fd = MemFile("x", 0);
  const DescriptorLimit limit(2);
  FrameHeader header;
  for (const uint16_t counted : {0, 1, 2}) {
    header.fd_count = counted;
    SendRaw(Packet(header), {fd.get(), fd.get(), fd.get()});
    EXPECT_THAT(ReceiveFrame(receiver_.get()), HasReason("BAD_FRAME")) << counted;
  }
}

}  // namespace
}  // namespace torpor::net
