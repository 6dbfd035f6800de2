#include "daemon/service/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"

namespace torpor {
namespace {

using testing::EndsWith;
using testing::Pair;
using testing::UnorderedElementsAre;

google::rpc::ErrorInfo InfoOf(const google::rpc::Status& rpc) {
  google::rpc::ErrorInfo info;
  EXPECT_EQ(rpc.details_size(), 1);
  EXPECT_TRUE(rpc.details(0).UnpackTo(&info));
  return info;
}

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status rpc;
  EXPECT_TRUE(rpc.ParseFromString(status.error_details()));
  return rpc;
}

// What the status takes of the trailers, by the rules of HTTP/2 (32 bytes for each entry).
size_t TrailerBytes(const grpc::Status& status) {
  size_t message = 0;
  for (const char c : status.error_message()) message += c >= 0x20 && c < 0x7f && c != '%' ? 1 : 3;
  const size_t details = (status.error_details().size() + 2) / 3 * 4;
  return message + details + sizeof "grpc-message" + sizeof "grpc-status-details-bin" +
         size_t{3} * 32 + 64;
}

TEST(GrpcStatusTest, OkIsOk) {
  EXPECT_TRUE(ToGrpcStatus(Status::Ok()).ok());
  EXPECT_EQ(ToRpcStatus(Status::Ok()).code(), 0);
  EXPECT_EQ(ToRpcStatus(Status::Ok()).details_size(), 0);
}

TEST(GrpcStatusTest, CarriesReasonAndNumbers) {
  const grpc::Status status =
      ToGrpcStatus(ResourceExhausted("DEVICE_BUDGET_EXHAUSTED", "no room for 4096 bytes")
                       .With("requested_bytes", 4096)
                       .With("available_bytes", 0));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "no room for 4096 bytes");
  const google::rpc::Status rpc = DetailsOf(status);
  EXPECT_EQ(rpc.code(), 8);
  EXPECT_EQ(rpc.message(), "no room for 4096 bytes");
  const google::rpc::ErrorInfo info = InfoOf(rpc);
  EXPECT_EQ(info.reason(), "DEVICE_BUDGET_EXHAUSTED");
  EXPECT_EQ(info.domain(), "torpor");
  EXPECT_THAT(info.metadata(),
              UnorderedElementsAre(Pair("requested_bytes", "4096"), Pair("available_bytes", "0")));
}

TEST(GrpcStatusTest, CodesAreThoseOfGrpc) {
  EXPECT_EQ(ToGrpcStatus(Aborted("R", "")).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ToGrpcStatus(Unavailable("R", "")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ToGrpcStatus(Status(Code::kDataLoss, "R", "")).error_code(),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(ToGrpcStatus(Status(Code::kUnimplemented, "R", "")).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(GrpcStatusTest, FitsIntoTrailers) {
  for (const std::string letter : {"x", "%", "\xc3\xa9", "\xff"}) {
    std::string text;
    while (text.size() < 100'000) text += letter;
    Status status = Internal(text, text);
    for (int i = 0; i < 200; ++i) status.Add("detail_" + std::to_string(i), text);
    status.Add(text, "value");
    const grpc::Status translated = ToGrpcStatus(status);
    EXPECT_LT(TrailerBytes(translated), 8000U) << letter;
    const google::rpc::Status rpc = DetailsOf(translated);
    EXPECT_THAT(rpc.message(), EndsWith("[truncated]"));
    EXPECT_EQ(InfoOf(rpc).metadata().at("details_truncated"), "true");
    EXPECT_THAT(InfoOf(rpc).metadata().at("detail_0"), EndsWith("[truncated]"));
  }
}

TEST(GrpcStatusTest, SmallDetailsSurviveLargeOnes) {
  Status status = Internal("R", "m");
  for (int i = 0; i < 50; ++i) status.Add("a" + std::to_string(i), std::string(250, 'x'));
  status.Add("requested_bytes", "17");
  const google::rpc::ErrorInfo info = InfoOf(DetailsOf(ToGrpcStatus(status)));
  EXPECT_EQ(info.metadata().at("requested_bytes"), "17");
}

TEST(GrpcStatusTest, InsideAMessageNothingIsCut) {
  const std::string text(100'000, 'x');
  EXPECT_EQ(ToRpcStatus(Internal("R", text)).message(), text);
}

TEST(GrpcStatusTest, ReplacesWhatIsNoUtf8) {
  const auto clean = [](const std::string& text) {
    return ToRpcStatus(Internal("R", text)).message();
  };
  EXPECT_EQ(clean("a\xff"
                  "b"),
            "a?b");
  EXPECT_EQ(clean("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(clean("\xc3"), "?");                 // cut short
  EXPECT_EQ(clean("\xc0\xaf"), "??");            // overlong
  EXPECT_EQ(clean("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(clean("\xf4\x90\x80\x80"), "????");  // beyond U+10FFFF
}

}  // namespace
}  // namespace torpor
