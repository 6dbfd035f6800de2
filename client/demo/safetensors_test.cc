#include "client/demo/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace torpor::demo {
namespace {

std::string ErrorOf(const std::string& header, uint64_t data_size) {
  try {
    (void)ParseSafetensorsHeader(header, data_size);
  } catch (const SafetensorsError& error) {
    return error.what();
  }
  return "";
}

void ExpectError(const std::string& header, uint64_t data_size, const std::string& part) {
  const std::string error = ErrorOf(header, data_size);
  EXPECT_NE(error.find(part), std::string::npos) << header << "\nsays: " << error;
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string Header(const std::string& a) { return R"({"a":)" + a + "}"; }
std::string Header(const std::string& a, const std::string& b) {
  return R"({"a":)" + a + R"(,"b":)" + b + "}";
}

TEST(SafetensorsTest, TensorsComeByOffset) {
  const auto tensors = ParseSafetensorsHeader(
      Header(Entry("F32", "[2,3]", "[16,40]"), Entry("BF16", "[8]", "[0,16]")) + "   ", 40);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[0].dtype, "BF16");
  EXPECT_EQ(tensors[0].size, 16u);
  EXPECT_EQ(tensors[1].name, "a");
  EXPECT_EQ(tensors[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(tensors[1].offset, 16u);
}

TEST(SafetensorsTest, ScalarsEmptyTensorsAndMetadata) {
  const auto tensors = ParseSafetensorsHeader(
      R"({"__metadata__":{"format":"pt"},"a":)" + Entry("I64", "[]", "[0,8]") + R"(,"b":)" +
          Entry("F16", "[4,0]", "[8,8]") + R"(,"c":)" + Entry("F4", "[4]", "[8,10]") + "}",
      10);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].size, 8u);
  EXPECT_EQ(tensors[1].size, 0u);
  EXPECT_EQ(tensors[2].size, 2u);
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).empty());
}

TEST(SafetensorsTest, RefusesWhatIsNoHeader) {
  ExpectError("", 0, "does not begin");
  ExpectError(" {}", 0, "does not begin");
  ExpectError("{\"a\":", 0, "not JSON");
  ExpectError("{}x", 0, "not JSON");
  ExpectError(R"({"a":1})", 0, "has no \"dtype\"");
  ExpectError(R"({"__metadata__":{"a":1}})", 0, "not a string");
  ExpectError(R"({"__metadata__":[]})", 0, "not an object");
}

TEST(SafetensorsTest, RefusesTwoTensorsOfOneName) {
  const std::string entry = Entry("U8", "[1]", "[0,1]");
  ExpectError(R"({"a":)" + entry + R"(,"a":)" + entry + "}", 1, "two entries named \"a\"");
}

TEST(SafetensorsTest, RefusesWhatDoesNotFitItsType) {
  ExpectError(Header(Entry("F31", "[1]", "[0,4]")), 4, "unknown dtype \"F31\"");
  ExpectError(Header(Entry("F32", "[1]", "[0,3]")), 3, "takes 4");
  ExpectError(Header(Entry("F4", "[3]", "[0,2]")), 2, "whole byte");
  ExpectError(Header(Entry("F32", "[4294967296,4294967296]", "[0,4]")), 4, "too large");
  ExpectError(Header(Entry("F32", "[-1]", "[0,4]")), 4, "0 or more");
  ExpectError(Header(Entry("F32", "[1.5]", "[0,4]")), 4, "0 or more");
  ExpectError(Header(Entry("F32", "3", "[0,4]")), 4, "not a list");
}

TEST(SafetensorsTest, RefusesOffsetsThatDoNotCoverTheData) {
  ExpectError(Header(Entry("U8", "[4]", "[0,4]")), 3, "outside");
  ExpectError(Header(Entry("U8", "[4]", "[4,0]")), 4, "outside");
  ExpectError(Header(Entry("U8", "[4]", "[0]")), 4, "not a pair");
  ExpectError(Header(Entry("U8", "[4]", "[0,18446744073709551615]")), 4, "outside");
  ExpectError(Header(Entry("U8", "[4]", "[0,4]")), 5, "end at 4");
  ExpectError(Header(Entry("U8", "[4]", "[0,4]"), Entry("U8", "[4]", "[3,7]")), 7, "overlaps");
  ExpectError(Header(Entry("U8", "[4]", "[0,4]"), Entry("U8", "[4]", "[5,9]")), 9, "gap");
}

class SafetensorsFileTest : public testing::Test {
 protected:
  SafetensorsFileTest() : path_(testing::TempDir() + "/x.safetensors") {}
  ~SafetensorsFileTest() override { std::remove(path_.c_str()); }

  void Write(uint64_t header_size, const std::string& rest) {
    std::ofstream file(path_, std::ios::binary);
    for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header_size >> (8 * i)));
    file << rest;
  }
  std::string OpenError() {
    try {
      SafetensorsFile file(path_);
    } catch (const SafetensorsError& error) {
      return error.what();
    }
    return "";
  }

  const std::string path_;
};

TEST_F(SafetensorsFileTest, GivesTheBytesOfATensor) {
  const std::string header = Header(Entry("U8", "[3]", "[0,3]"), Entry("U8", "[2]", "[3,5]"));
  Write(header.size(), header + "abcde");
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.data_size(), 5u);
  EXPECT_EQ(std::string(file.bytes(file.tensors()[0]), 3), "abc");
  EXPECT_EQ(std::string(file.bytes(file.tensors()[1]), 2), "de");
}

TEST_F(SafetensorsFileTest, NamesTheFileInItsErrors) {
  EXPECT_EQ(OpenError(), path_ + ": cannot open it: No such file or directory");
  Write(3, "{}");
  EXPECT_NE(OpenError().find(path_ + ": its header would be 3 bytes"), std::string::npos);
  Write(~uint64_t{0}, "{}");
  EXPECT_NE(OpenError().find("its header would be"), std::string::npos);
  std::ofstream(path_, std::ios::binary) << "abc";
  EXPECT_NE(OpenError().find("too short"), std::string::npos);
}

}  // namespace
}  // namespace torpor::demo
