#include "lib/wire/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/cancel_token.h"
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
  Requests requests_{[this](const net::Frame& request) {
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
  PeerSends(Answer(Type::kFree), second_frame.id,
            Encode(FreeReply{NotFound("SECOND", ""), {}, {}}));
  PeerSends(Answer(Type::kFree), first_frame.id, Encode(FreeReply{NotFound("FIRST", ""), {}, {}}));
  const auto first_reply = channel_->WaitFor<FreeReply>(first, Late());
  const auto second_reply = channel_->WaitFor<FreeReply>(second, Late());
  ASSERT_THAT(first_reply, IsOk());
  ASSERT_THAT(second_reply, IsOk());
  EXPECT_EQ(first_reply->status.reason(), "FIRST");
  EXPECT_EQ(second_reply->status.reason(), "SECOND");
}

TEST_F(ChannelTest, ACancelledWaitEndsAtOnceAndItsAnswerIsDropped) {
  CancelToken token;
  const auto call = StartFree();
  const net::Frame asked = PeerReceives();
  std::thread canceller([&] { token.Cancel(Status(Code::kCancelled, "TEST_CANCELS", "")); });
  EXPECT_THAT(channel_->Wait(call, std::nullopt, &token), HasReason("TEST_CANCELS"));
  canceller.join();
  EXPECT_THAT(channel_->Wait(StartFree(), Late(), &token), HasReason("TEST_CANCELS"));
  PeerSends(Answer(Type::kFree), asked.id, Encode(FreeReply{}));
  // The channel lives on.
  (void)PeerReceives();
  const auto next = StartFree();
  PeerSends(Answer(Type::kFree), PeerReceives().id, Encode(FreeReply{}));
  EXPECT_THAT(channel_->Wait(next, Late()), IsOk());
}

TEST_F(ChannelTest, AnAnswerThatIsThereWinsOverACancellation) {
  CancelToken token;
  const auto call = StartFree();
  PeerSends(Answer(Type::kFree), PeerReceives().id, Encode(FreeReply{}));
  const auto later = StartFree();
  PeerSends(Answer(Type::kFree), PeerReceives().id, Encode(FreeReply{}));
  ASSERT_THAT(channel_->Wait(later, Late()), IsOk());
  token.Cancel(Status(Code::kCancelled, "TEST_CANCELS", ""));
  EXPECT_THAT(channel_->Wait(call, Late(), &token), IsOk());
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

// Two channels, each read by a thread of its own. The far one serves with `serve_`.
class ChannelPairTest : public ::testing::Test {
 protected:
  ChannelPairTest() { Connect(); }
  ~ChannelPairTest() override { Stop(); }

  void Connect() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    near_ = std::make_unique<Channel>(UniqueFd(fds[0]), "PEER_GONE");
    far_ = std::make_unique<Channel>(UniqueFd(fds[1]), "WORKER_GONE");
  }
  void Start() {
    near_thread_ = std::thread([this] {
      Requests server([](const net::Frame&) { ADD_FAILURE() << "nobody asks the near end"; });
      near_end_ = near_->Run(server);
    });
    far_thread_ = std::thread([this] {
      Requests server([this](net::Frame request) { serve_(std::move(request)); });
      far_end_ = far_->Run(server);
    });
  }
  void Stop() {
    near_->End(Status::Ok());
    far_->End(Status::Ok());
    Join();
  }
  void Join() {
    if (near_thread_.joinable()) near_thread_.join();
    if (far_thread_.joinable()) far_thread_.join();
  }
  Result<StatusReply> AskFreed(SegmentId segment) {
    return near_->Ask<StatusReply>(Type::kFreed, Freed{segment}, std::nullopt);
  }

  std::unique_ptr<Channel> near_;
  std::unique_ptr<Channel> far_;
  std::thread near_thread_;
  std::thread far_thread_;
  Status near_end_;
  Status far_end_;
  // Repeats the segment that it was asked about, as the message of its status.
  std::function<void(net::Frame)> serve_ = [this](const net::Frame& request) {
    const auto freed = Decode<Freed>(request.payload);
    StatusReply reply;
    reply.status = Aborted("ECHO", std::to_string(freed->segment.value()));
    EXPECT_THAT(far_->Answer(request.type, request.id, reply), IsOk());
  };
};

// This process has no room for another descriptor.
class NoRoom {
 public:
  NoRoom() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none{0, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoRoom() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST_F(ChannelPairTest, ARequestWithoutRoomForItsPayloadIsHandedOverWithoutIt) {
  const auto large = near_->Start(Type::kUnmap, std::string(net::kMaxPacketBytes, 'p'));
  ASSERT_THAT(large, IsOk());
  serve_ = [this](const net::Frame& request) {
    EXPECT_TRUE(request.payload_missing);
    EXPECT_THAT(far_->Answer(request.type, request.id, StatusReply{net::DescriptorsMissing()}),
                IsOk());
  };
  const NoRoom no_room;
  Start();
  const auto reply = near_->WaitFor<StatusReply>(*large, Late());
  ASSERT_THAT(reply, IsOk());
  EXPECT_THAT(reply->status, HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_THAT(near_->Gone(), IsOk());
  Stop();
}

TEST_F(ChannelPairTest, AnAnswerWithoutRoomForItsPayloadFailsThatCallAlone) {
  const auto call = near_->Start(Type::kCancel, Encode(CancelRequest{}));
  ASSERT_THAT(call, IsOk());
  const std::vector<ExtentId> many(10'000);
  ASSERT_THAT(far_->Answer(static_cast<uint16_t>(Type::kCancel), 1, CancelReply{{}, many}), IsOk());
  serve_ = [](const net::Frame&) {};
  const NoRoom no_room;
  Start();
  EXPECT_THAT(near_->WaitFor<CancelReply>(*call, Late()), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_THAT(near_->Gone(), IsOk());
  Stop();
}

TEST_F(ChannelPairTest, AnAnswerThatThereAreNoDescriptorsToSendSaysSo) {
  serve_ = [this](const net::Frame& request) {
    const std::vector<ExtentId> many(10'000);
    EXPECT_THAT(far_->Answer(request.type, request.id, CancelReply{{}, many}), IsOk());
  };
  Start();
  const NoRoom no_room;
  const auto reply = near_->Ask<CancelReply>(Type::kCancel, CancelRequest{}, Late());
  ASSERT_THAT(reply, IsOk());
  EXPECT_THAT(reply->status, HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_TRUE(reply->mapped.empty());
  Stop();
}

TEST_F(ChannelPairTest, DescriptorsTravelBothWays) {
  serve_ = [this](const net::Frame& request) {
    ASSERT_EQ(request.fds.size(), 1u);
    EXPECT_THAT(far_->Answer(request.type, request.id, StatusReply{}, {request.fds[0].get()}),
                IsOk());
  };
  Start();
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  UniqueFd reading(fds[0]);
  UniqueFd writing(fds[1]);
  const auto call = near_->Start(Type::kMap, Encode(MapRequest{}), {writing.get()});
  ASSERT_THAT(call, IsOk());
  writing.Reset();
  auto answer = near_->Wait(*call, std::nullopt);
  ASSERT_THAT(answer, IsOk());
  ASSERT_EQ(answer->fds.size(), 1u);
  EXPECT_EQ(::write(answer->fds[0].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 1);
}

TEST_F(ChannelPairTest, BothEndsMayAskAtOnce) {
  serve_ = [this](const net::Frame& request) {
    // A question of its own first: ids of the two directions are independent.
    EXPECT_THAT(far_->Start(Type::kResume, Encode(ResumeRequest{})), IsOk());
    EXPECT_THAT(far_->Answer(request.type, request.id, StatusReply{}), IsOk());
  };
  std::vector<uint16_t> asked;
  near_thread_ = std::thread([&] {
    Requests server([&](const net::Frame& request) { asked.push_back(request.type); });
    near_end_ = near_->Run(server);
  });
  far_thread_ = std::thread([&] {
    Requests server([&](net::Frame request) { serve_(std::move(request)); });
    far_end_ = far_->Run(server);
  });
  EXPECT_THAT(AskFreed(SegmentId(1)), IsOk());
  EXPECT_THAT(AskFreed(SegmentId(2)), IsOk());
  Stop();
  const auto resume = static_cast<uint16_t>(Type::kResume);
  EXPECT_EQ(asked, (std::vector<uint16_t>{resume, resume}));
}

TEST_F(ChannelPairTest, ConcurrentCallersGetTheirOwnAnswers) {
  Start();
  std::vector<std::thread> callers;
  callers.reserve(8);
  for (uint64_t t = 0; t < 8; ++t) {
    callers.emplace_back([this, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        const uint64_t id = t * 1000 + i;
        const auto reply = AskFreed(SegmentId(id));
        ASSERT_THAT(reply, IsOk());
        ASSERT_EQ(reply->status.message(), std::to_string(id));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(ChannelPairTest, TheEndOfTheStreamReachesEveryWaiter) {
  int asked = 0;
  serve_ = [&](const net::Frame&) {
    if (++asked == 3) far_->End(Status::Ok());
  };
  Start();
  std::vector<std::thread> callers;
  callers.reserve(8);
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([this] {
      const auto reply = AskFreed(SegmentId(1));
      EXPECT_THAT(reply, HasReason("PEER_GONE"));
      EXPECT_THAT(reply, HasCode(Code::kUnavailable));
    });
  }
  for (std::thread& caller : callers) caller.join();
  Join();
  EXPECT_THAT(near_end_, HasReason("CONNECTION_CLOSED"));
  EXPECT_THAT(near_->Gone(), HasReason("PEER_GONE"));
  EXPECT_THAT(AskFreed(SegmentId(1)), HasReason("PEER_GONE"));
}

// Before Run has seen the end of the stream, a send does.
TEST_F(ChannelPairTest, AskingAPeerThatHungUpEndsTheChannel) {
  far_ = nullptr;
  EXPECT_THAT(AskFreed(SegmentId(1)), HasReason("PEER_GONE"));
  EXPECT_THAT(near_->Gone(), HasReason("PEER_GONE"));
  far_ = std::make_unique<Channel>(UniqueFd(), "WORKER_GONE");
}

TEST_F(ChannelPairTest, GarbageEndsTheChannel) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  Channel channel{UniqueFd(fds[0]), "PEER_GONE"};
  const UniqueFd peer(fds[1]);
  ASSERT_EQ(::send(peer.get(), "garbage", 7, 0), 7);
  Requests server([](const net::Frame&) { ADD_FAILURE(); });
  EXPECT_THAT(channel.Run(server), HasReason("BAD_FRAME"));
  EXPECT_THAT(channel.Gone(), HasReason("PEER_GONE"));
}

TEST_F(ChannelPairTest, AFrameThatIsTooLargeFailsAloneAndTheChannelGoesOn) {
  Start();
  const std::vector<int> fds(net::kMaxFrameFds + 1, 0);
  EXPECT_THAT(near_->Start(Type::kMap, Encode(MapRequest{}), fds), HasReason("FRAME_TOO_LARGE"));
  EXPECT_THAT(AskFreed(SegmentId(1)), IsOk());
}

TEST_F(ChannelPairTest, AnAnswerThatNobodyAskedForEndsTheChannel) {
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63}) {
    Connect();
    Start();
    EXPECT_THAT(far_->Answer(static_cast<uint16_t>(Type::kFreed), id, StatusReply{}), IsOk());
    Join();
    EXPECT_THAT(near_end_, HasReason("BAD_FRAME")) << id;
    EXPECT_THAT(far_end_, HasReason("CONNECTION_CLOSED")) << id;
  }
}

}  // namespace
}  // namespace torpor::wire
