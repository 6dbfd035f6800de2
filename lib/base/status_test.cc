#include "lib/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace torpor {
namespace {

TEST(StatusTest, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status, Status::Ok());
  EXPECT_EQ(status.ToString(), "OK");
}

TEST(StatusTest, CarriesDetails) {
  const Status status = ResourceExhausted("POOL_EXHAUSTED", "no room")
                            .With("requested_bytes", int64_t{4096})
                            .With("state", "RESIDENT");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.reason(), "POOL_EXHAUSTED");
  EXPECT_EQ(status.Number("requested_bytes"), 4096);
  EXPECT_EQ(status.Number("state"), std::nullopt);
  EXPECT_EQ(status.Number("absent"), std::nullopt);
  EXPECT_EQ(status.ToString(),
            "RESOURCE_EXHAUSTED POOL_EXHAUSTED: no room {requested_bytes: 4096, state: RESIDENT}");
}

TEST(StatusTest, EveryCodeHasAName) {
  for (const int code : {0, 1, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15}) {
    EXPECT_NE(CodeName(static_cast<Code>(code)), "UNKNOWN") << code;
  }
  EXPECT_EQ(CodeName(static_cast<Code>(99)), "UNKNOWN");
}

TEST(StatusTest, ErrnoSaysWhatFailed) {
  const Status status = ErrnoStatus(ENOENT, "open x");
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.reason(), "ERRNO_ENOENT");
  EXPECT_EQ(status.message(), "open x: No such file or directory");
  EXPECT_EQ(status.Number("errno"), ENOENT);
}

TEST(StatusTest, DescriptorsAreNotMemory) {
  for (const int error : {EMFILE, ENFILE}) {
    const Status status = ErrnoStatus(error, "dup");
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_EQ(status.reason(), "FILE_DESCRIPTORS_EXHAUSTED");
  }
  EXPECT_EQ(ErrnoStatus(ENOMEM, "mmap").reason(), "ERRNO_ENOMEM");
}

TEST(StatusTest, UnknownErrnoIsInternal) {
  const Status status = ErrnoStatus(4000, "x");
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.reason(), "ERRNO_4000");
}

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("ODD", "odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  TORPOR_ASSIGN_OR_RETURN(const int half, Half(n));
  TORPOR_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status IsQuarterable(int n) {
  TORPOR_RETURN_IF_ERROR(Quarter(n).status());
  return Status::Ok();
}

TEST(ResultTest, PropagatesTheFirstError) {
  ASSERT_TRUE(Quarter(8).ok());
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().reason(), "ODD");
  EXPECT_TRUE(IsQuarterable(4).ok());
  EXPECT_EQ(IsQuarterable(2).reason(), "ODD");
}

TEST(ResultTest, HoldsWhatOnlyMoves) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 3);
}

}  // namespace
}  // namespace torpor
