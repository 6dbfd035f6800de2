#include "lib/wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "lib/base/status_matchers.h"
#include "lib/wire/codec.h"

namespace torpor::wire {
namespace {

Status SomeStatus() {
  return ResourceExhausted("DEVICE_MEMORY_EXHAUSTED", "no room").With("requested_bytes", 42);
}

std::vector<Extent> SomeExtents() {
  return {{ExtentId(7), MiB(2), MiB(4)}, {ExtentId(~0ull), MiB(6), MiB(2)}};
}

// Calls `check` with one filled message of each type.
template <typename Check>
void ForEachMessage(Check check) {
  check(Hello{"engine", "GPU-1", Quiesce::kGuard, "r1", WorkerId(3), "secret", {SegmentId(9)}});
  check(HelloReply{SomeStatus(),
                   WorkerId(3),
                   std::string(16, '\0'),
                   "cuda",
                   "GPU-1",
                   GiB(80),
                   MiB(2),
                   GiB(1024),
                   30000,
                   {SegmentId(9)}});
  check(Allocate{"weights", Bytes(-1)});
  check(AllocateReply{Status(), SegmentId(9), MiB(2), MiB(6), SomeExtents()});
  check(Allocated{SegmentId(9), SomeStatus()});
  check(Free{SegmentId(9)});
  check(FreeReply{Status(), SomeExtents(), {3, {"a"}}});
  check(Freed{SegmentId(9)});
  check(Sleep{{"weights", ""}, 2, {{"kv_cache", Policy::kDiscard}}, true, -5});
  check(WakeUp{{"weights"}, "r1", 1000});
  check(SleepReply{SomeStatus(), MiB(1), MiB(2), MiB(3)});
  check(Usage{1});
  check(UsageReply{Status(), GiB(80), GiB(10), GiB(8), {{"weights", 3, MiB(1), MiB(2), MiB(3)}}});
  check(SetQuiesce{Quiesce::kCallback});
  check(SetSleepEndpoint{"POST http://localhost:8000/sleep"});
  check(Report{MiB(1), MiB(2)});
  check(StatusReply{SomeStatus()});
  check(QuiesceRequest{OperationId(5), true});
  check(UnmapRequest{OperationId(5), "weights", SomeExtents()});
  check(MapRequest{OperationId(5), "weights", SomeExtents()});
  check(ResumeRequest{OperationId(5), {7, {"a", "b"}}});
  check(CancelRequest{OperationId(5)});
  check(CancelReply{Status(), {ExtentId(1), ExtentId(2)}});
}

TEST(MessagesTest, ComeBackAsTheyWere) {
  ForEachMessage([](const auto& message) {
    using Message = std::decay_t<decltype(message)>;
    const std::string bytes = Encode(message);
    const Result<Message> decoded = Decode<Message>(bytes);
    ASSERT_THAT(decoded, IsOk());
    EXPECT_EQ(Encode(*decoded), bytes);
  });
}

TEST(MessagesTest, FieldsArriveInTheirPlaces) {
  const auto reply = Decode<UsageReply>(Encode(
      UsageReply{SomeStatus(), GiB(80), GiB(10), GiB(8), {{"w", 3, MiB(1), MiB(2), MiB(3)}}}));
  ASSERT_THAT(reply, IsOk());
  EXPECT_EQ(reply->status, SomeStatus());
  EXPECT_EQ(reply->device_total, GiB(80));
  EXPECT_EQ(reply->available, GiB(8));
  ASSERT_EQ(reply->tags.size(), 1u);
  EXPECT_EQ(reply->tags[0].tag, "w");
  EXPECT_EQ(reply->tags[0].segments, 3u);
  EXPECT_EQ(reply->tags[0].discarded, MiB(3));
}

TEST(MessagesTest, EveryPrefixIsRefused) {
  ForEachMessage([](const auto& message) {
    using Message = std::decay_t<decltype(message)>;
    const std::string bytes = Encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = Decode<Message>(std::string_view(bytes).substr(0, size));
      EXPECT_THAT(decoded, HasReason("BAD_FRAME")) << size;
    }
  });
}

TEST(MessagesTest, WhatIsLeftOverIsRefused) {
  ForEachMessage([](const auto& message) {
    using Message = std::decay_t<decltype(message)>;
    EXPECT_THAT(Decode<Message>(Encode(message) + '\0'), HasReason("BAD_FRAME"));
  });
}

TEST(MessagesTest, AbsurdCountsAreRefusedBeforeTheyTakeMemory) {
  // A status and a count of 2^32 - 1 elements, of which two bytes are there.
  std::string bytes = Encode(StatusReply{}) + "\xff\xff\xff\xff__";
  EXPECT_THAT(Decode<CancelReply>(bytes), HasReason("BAD_FRAME"));
  EXPECT_THAT(Decode<FreeReply>(bytes), HasReason("BAD_FRAME"));
}

TEST(MessagesTest, CodesThatDoNotExistAreRefused) {
  for (const int32_t code : {-1, 17, 1 << 30}) {
    const StatusReply reply{Status(static_cast<Code>(code), "REASON", "text")};
    EXPECT_THAT(Decode<StatusReply>(Encode(reply)), HasReason("BAD_FRAME")) << code;
  }
  const StatusReply unused{Status(static_cast<Code>(16), "REASON", "text")};
  EXPECT_THAT(Decode<StatusReply>(Encode(unused)), IsOk());
}

TEST(MessagesTest, AnyBytesAreSurvived) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    ForEachMessage([&](const auto& message) {
      using Message = std::decay_t<decltype(message)>;
      std::string bytes = Encode(message);
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      const auto decoded = Decode<Message>(bytes);
      if (decoded.ok()) (void)Encode(*decoded);
    });
  }
}

TEST(MessagesTest, AnswersFollowTheirRequests) {
  EXPECT_EQ(Answer(Type::kHello), 0x101);
  EXPECT_EQ(Answer(Type::kCancel), 0x209);
}

}  // namespace
}  // namespace torpor::wire
