#include "lib/wire/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor::wire {
namespace {

class Requests : public Channel::Handler {
 public:
  explicit Requests(std::function<void(net::Frame)> take) : take_(std::move(take)) {}
  void OnRequest(net::Frame request) override { take_(std::move(request)); }

 private:
  std::function<void(net::Frame)> take_;
};

TimePoint Soon() { return Clock::Real().Now() + milliseconds(20); }
TimePoint Late() { return Clock::Real().Now() + seconds(20); }

// A channel, and its peer as a bare socket.
class ChannelTest : public testing::Test {
 protected:
  ChannelTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    channel_ = std::make_unique<Channel>(UniqueFd(ends[0]), "PEER_GONE");
    peer_ = UniqueFd(ends[1]);
    reader_ = std::thread([this] { ended_ = channel_->Run(requests_); });
  }
  ~ChannelTest() override { Join(); }

  void Join() {
    channel_->End(Unavailable("TEST_IS_OVER", ""));
    if (reader_.joinable()) reader_.join();
  }
  net::Frame PeerReceives() {
    auto frame = net::ReceiveFrame(peer_.get());
    EXPECT_THAT(frame, IsOk());
    return frame.ok() ? *std::move(frame) : net::Frame();
  }
  void PeerSends(uint16_t type, uint64_t id, const std::string& payload) {
    EXPECT_THAT(net::SendFrame(peer_.get(), type, id, payload), IsOk());
  }
  Channel::CallPtr StartFree() {
    auto call = channel_->Start(Type::kFree, Encode(Free{SegmentId(1)}));
    EXPECT_THAT(call, IsOk());
    return *std::move(call);
  }

  std::vector<uint16_t> requested_;
  Requests requests_{[this](net::Frame request) {
    requested_.push_back(request.type);
    EXPECT_THAT(channel_->Answer(request.type, request.id, StatusReply{}), IsOk());
  }};
  std::unique_ptr<Channel> channel_;
  UniqueFd peer_;
  Status ended_;
  std::thread reader_;
};

TEST_F(ChannelTest, AnswersFindTheirCallersInAnyOrder) {
  const auto first = StartFree();
  const auto second = StartFree();
  const net::Frame first_frame = PeerReceives();
  const net::Frame second_frame = PeerReceives();
  PeerSends(Answer(Type::kFree), second_frame.id, Encode(FreeReply{NotFound("SECOND", ""), {}}));
  PeerSends(Answer(Type::kFree), first_frame.id, Encode(FreeReply{NotFound("FIRST", ""), {}}));
  const auto first_reply = channel_->WaitFor<FreeReply>(first, Late());
  const auto second_reply = channel_->WaitFor<FreeReply>(second, Late());
  ASSERT_THAT(first_reply, IsOk());
  ASSERT_THAT(second_reply, IsOk());
  EXPECT_EQ(first_reply->status.reason(), "FIRST");
  EXPECT_EQ(second_reply->status.reason(), "SECOND");
}

TEST_F(ChannelTest, RequestsGoToTheHandler) {
  PeerSends(static_cast<uint16_t>(Type::kCancel), 9, Encode(CancelRequest{OperationId(1)}));
  const net::Frame answer = PeerReceives();
  EXPECT_EQ(answer.type, Answer(Type::kCancel));
  EXPECT_EQ(answer.id, 9u);
  Join();
  EXPECT_THAT(requested_, testing::ElementsAre(static_cast<uint16_t>(Type::kCancel)));
}

TEST_F(ChannelTest, ALateAnswerIsDropped) {
  const auto call = StartFree();
  EXPECT_THAT(channel_->Wait(call, Soon()), HasReason("PEER_SILENT"));
  const net::Frame frame = PeerReceives();
  PeerSends(Answer(Type::kFree), frame.id, Encode(FreeReply{}));
  const auto other = StartFree();
  PeerSends(Answer(Type::kFree), PeerReceives().id, Encode(FreeReply{}));
  EXPECT_THAT(channel_->WaitFor<FreeReply>(other, Late()), IsOk());
}

TEST_F(ChannelTest, EndOfStreamEndsWaits) {
  const auto call = StartFree();
  PeerReceives();  // unread, it would make a reset of the end
  peer_.Reset();
  const auto answer = channel_->Wait(call, Late());
  EXPECT_THAT(answer, HasReason("PEER_GONE"));
  EXPECT_EQ(answer.status().details().at("cause"), "CONNECTION_CLOSED");
  EXPECT_THAT(channel_->Start(Type::kFree, ""), HasReason("PEER_GONE"));
}

TEST_F(ChannelTest, AnswersThatFitNoQuestionEndIt) {
  const auto call = StartFree();
  PeerSends(Answer(Type::kUsage), PeerReceives().id, Encode(UsageReply{}));
  const auto answer = channel_->Wait(call, Late());
  EXPECT_THAT(answer, HasReason("PEER_GONE"));
  EXPECT_EQ(answer.status().details().at("cause"), "BAD_FRAME");
  Join();
  EXPECT_THAT(ended_, HasReason("BAD_FRAME"));
}

TEST_F(ChannelTest, AnAnswerToNothingEndsIt) {
  PeerSends(Answer(Type::kFree), 1000, Encode(FreeReply{}));
  while (channel_->Gone().ok()) std::this_thread::yield();
  Join();
  EXPECT_THAT(ended_, HasReason("BAD_FRAME"));
}

TEST_F(ChannelTest, AnAnswerThatCannotBeReadEndsIt) {
  const auto call = StartFree();
  PeerSends(Answer(Type::kFree), PeerReceives().id, "?");
  EXPECT_THAT(channel_->WaitFor<FreeReply>(call, Late()), HasReason("BAD_FRAME"));
  EXPECT_THAT(channel_->Gone(), HasReason("PEER_GONE"));
}

TEST_F(ChannelTest, TheFirstCauseStays) {
  channel_->End(Aborted("FIRST", ""));
  channel_->End(Aborted("SECOND", ""));
  EXPECT_EQ(channel_->Gone().details().at("cause"), "FIRST");
}

}  // namespace
}  // namespace torpor::wire
