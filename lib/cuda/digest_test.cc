#include "lib/cuda/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/units.h"
#include "lib/cuda/digest_kernel.h"

namespace torpor {
namespace {

using Buffer = std::vector<std::byte>;

constexpr Bytes kWord(16);

PartDigest Of(const Buffer& bytes, Bytes position = Bytes(0)) {
  return DigestBytes(bytes.data(), Bytes(static_cast<int64_t>(bytes.size())), position);
}

Buffer Filled(Bytes size, int byte) { return Buffer(size.size(), static_cast<std::byte>(byte)); }

// The same bytes for ever: digests of them are written down below.
Buffer Pattern(Bytes size, uint64_t seed = 1) {
  Buffer bytes(size.size());
  uint64_t state = seed;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

void Put(Buffer& bytes, Bytes offset, uint64_t value) {
  std::memcpy(bytes.data() + offset.value(), &value, sizeof value);
}

void Swap(Buffer& bytes, Bytes first, Bytes second, Bytes size) {
  std::swap_ranges(bytes.begin() + first.value(), bytes.begin() + (first + size).value(),
                   bytes.begin() + second.value());
}

// Digests that must all differ.
class Distinct {
 public:
  void Add(const PartDigest& digest) { unlike_ &= seen_.insert({digest.high, digest.low}).second; }
  bool ok() const { return unlike_; }

 private:
  std::set<std::pair<uint64_t, uint64_t>> seen_;
  bool unlike_ = true;
};

// Digests outlive the program that took them. Where this fails, the digest is another one and needs
// another kDigestVersion.
TEST(DigestTest, NeverChanges) {
  EXPECT_EQ(kDigestVersion, 1);
  EXPECT_EQ(Of({}), PartDigest());
  const auto expect = [](const PartDigest& digest, uint64_t high, uint64_t low) {
    EXPECT_TRUE(digest.high == high && digest.low == low)
        << std::hex << "0x" << digest.high << ", 0x" << digest.low;
  };
  expect(Of(Filled(kWord, 0)), 0x2b553aae19efcb3d, 0x7b24589438d9591d);
  expect(Of(Filled(kWord, 0), GiB(5)), 0x18329768fb313c54, 0xd786291afd610e7b);
  expect(Of(Filled(KiB(256), 0)), 0xe84773ff38fd85b4, 0x3162de0e8db130a3);
  expect(Of(Filled(KiB(256), 0xff)), 0xe84773ff38fd4568, 0xa9cdc00c34f70e5c);
  expect(Of(Pattern(kWord)), 0x26ac0ea97d1c871, 0xf5656fc5e78460bf);
  expect(Of(Pattern(kWord * 7), kWord * 3), 0x91570c8b1b62f388, 0xa50dd250b194d31b);
  expect(Of(Pattern(MiB(2))), 0x303c3d9f5e03b66, 0x1143244683ae5845);
  expect(Of(Pattern(MiB(2)), GiB(64)), 0xda719ecf16e69019, 0x156516108215bfeb);
}

TEST(DigestTest, IsTheSumOfItsParts) {
  const Buffer bytes = Pattern(KiB(4));
  for (const Bytes position : {Bytes(0), kWord, kDigestPart - KiB(2), GiB(700)}) {
    const PartDigest whole = Of(bytes, position);
    for (Bytes cut; cut <= KiB(4); cut += kWord) {
      const PartDigest parts =
          DigestBytes(bytes.data(), cut, position) +
          DigestBytes(bytes.data() + cut.value(), KiB(4) - cut, position + cut);
      EXPECT_EQ(parts, whole) << cut.value();
    }
    PartDigest words;
    for (Bytes at = KiB(4) - kWord; at >= Bytes(0); at -= kWord) {
      words += DigestBytes(bytes.data() + at.value(), kWord, position + at);
    }
    EXPECT_EQ(words, whole);
  }
}

TEST(DigestTest, AdditionCarries) {
  constexpr uint64_t kMost = ~uint64_t{0};
  EXPECT_EQ((PartDigest{kMost, 0} + PartDigest{1, 0}), (PartDigest{0, 1}));
  EXPECT_EQ((PartDigest{kMost, kMost} + PartDigest{1, 0}), (PartDigest{0, 0}));
  EXPECT_EQ((PartDigest{kMost, 2} + PartDigest{kMost, 3}), (PartDigest{kMost - 1, 6}));
  EXPECT_EQ((PartDigest{1, kMost} + PartDigest{2, 1}), (PartDigest{3, 0}));
}

TEST(DigestTest, DoesNotDependOnWhereTheBytesAre) {
  const Buffer bytes = Pattern(KiB(1));
  Buffer moved(bytes.size() + 16);
  for (int offset = 0; offset < 16; ++offset) {
    std::copy(bytes.begin(), bytes.end(), moved.begin() + offset);
    EXPECT_EQ(DigestBytes(moved.data() + offset, KiB(1), kWord), Of(bytes, kWord));
  }
}

TEST(DigestTest, EveryBitCounts) {
  for (Buffer bytes : {Filled(KiB(2), 0), Filled(KiB(2), 0xff), Pattern(KiB(2))}) {
    Distinct digests;
    digests.Add(Of(bytes));
    for (std::byte& byte : bytes) {
      for (int bit = 0; bit < 8; ++bit) {
        byte ^= std::byte{1} << bit;
        digests.Add(Of(bytes));
        byte ^= std::byte{1} << bit;
      }
    }
    EXPECT_TRUE(digests.ok());
  }
}

TEST(DigestTest, EveryPairOfBitsCounts) {
  // Among them all changes that a plain sum would not see: a bit set here, cleared there.
  for (Buffer bytes : {Filled(kWord * 4, 0), Pattern(kWord * 4)}) {
    const int bits = static_cast<int>(bytes.size()) * 8;
    const auto flip = [&](int bit) { bytes[bit / 8] ^= std::byte{1} << (bit % 8); };
    Distinct digests;
    for (int first = 0; first < bits; ++first) {
      flip(first);
      for (int second = first + 1; second < bits; ++second) {
        flip(second);
        digests.Add(Of(bytes));
        flip(second);
      }
      flip(first);
    }
    EXPECT_TRUE(digests.ok());
  }
}

TEST(DigestTest, OrderCounts) {
  const Bytes size = MiB(2);
  Buffer bytes = Pattern(size);
  const PartDigest before = Of(bytes);
  for (const Bytes length : {Bytes(1), Bytes(2), Bytes(4), Bytes(8), kWord, KiB(4), KiB(256)}) {
    for (const Bytes distance : {length, length * 2, length * 3, KiB(256), MiB(1)}) {
      if (distance < length || distance + length > size) continue;
      Swap(bytes, Bytes(0), distance, length);
      EXPECT_NE(Of(bytes), before) << length.value() << " at " << distance.value();
      Swap(bytes, Bytes(0), distance, length);
    }
  }
  EXPECT_EQ(Of(bytes), before);
}

TEST(DigestTest, PlaceCounts) {
  const Buffer bytes = Pattern(KiB(4));
  const Buffer zero = Filled(kWord, 0);
  Distinct digests;
  for (Bytes position; position < MiB(1); position += kWord) digests.Add(Of(zero, position));
  for (Bytes position; position < KiB(64); position += kWord) digests.Add(Of(bytes, position));
  for (Bytes position = MiB(2); position < GiB(1); position += MiB(2)) {
    digests.Add(Of(bytes, position));
  }
  for (Bytes position = GiB(1); position < GiB(1 << 20); position = position * 2) {
    digests.Add(Of(bytes, position));
    digests.Add(Of(zero, position));
  }
  EXPECT_TRUE(digests.ok());
}

TEST(DigestTest, ZerosAreNotNothing) {
  Distinct digests;
  for (Bytes size; size <= KiB(64); size += kWord) digests.Add(Of(Filled(size, 0)));
  EXPECT_TRUE(digests.ok());
}

// Where keys are too regular, changes in the corners of a rectangle cancel each other.
TEST(DigestTest, CornersDoNotCancel) {
  const auto all = [&](Bytes first, Bytes second, Bytes half, uint64_t value) {
    const Bytes corners[] = {half, half + first, half + second, half + first + second};
    Distinct digests;
    for (int set = 0; set < 16; ++set) {
      PartDigest sum;
      for (int corner = 0; corner < 4; ++corner) {
        Buffer word = Filled(kWord, 0);
        if ((set >> corner & 1) != 0) Put(word, half, value);
        sum += Of(word, corners[corner] - half);
      }
      digests.Add(sum);
    }
    return digests.ok();
  };
  for (Bytes first = kWord; first <= GiB(64); first = first * 2) {
    for (Bytes second = first * 2; second <= GiB(128); second = second * 2) {
      for (const Bytes half : {Bytes(0), Bytes(8)}) {
        for (int bit = 0; bit < 64; bit += 7) {
          ASSERT_TRUE(all(first, second, half, uint64_t{1} << bit))
              << first.value() << ", " << second.value() << ", bit " << bit;
        }
        ASSERT_TRUE(all(first, second, half, 0x3f803f803f803f80));
      }
    }
  }
}

TEST(DigestTest, SmallStepsEverywhereCount) {
  // Each of 16-bit floats, 32-bit floats, and counters, a little more at a time.
  for (const Bytes width : {Bytes(2), Bytes(4), Bytes(8)}) {
    for (Buffer bytes : {Filled(KiB(16), 0), Filled(KiB(16), 0x3c), Pattern(KiB(16))}) {
      Distinct digests;
      for (int step = 0; step < 200; ++step) {
        digests.Add(Of(bytes));
        for (size_t at = 0; at < bytes.size(); at += width.size()) {
          uint64_t value = 0;
          std::memcpy(&value, &bytes[at], width.size());
          ++value;
          std::memcpy(&bytes[at], &value, width.size());
        }
      }
      EXPECT_TRUE(digests.ok()) << width.value();
    }
  }
}

TEST(DigestTest, CountsTheParts) {
  EXPECT_EQ(DigestParts(Bytes(0), Bytes(0)), 0);
  EXPECT_EQ(DigestParts(Bytes(0), kWord), 0);
  EXPECT_EQ(DigestParts(kWord, Bytes(0)), 1);
  EXPECT_EQ(DigestParts(kDigestPart, Bytes(0)), 1);
  EXPECT_EQ(DigestParts(kDigestPart, kWord), 2);
  EXPECT_EQ(DigestParts(kDigestPart + kWord, Bytes(0)), 2);
  EXPECT_EQ(DigestParts(kWord, kDigestPart - kWord), 1);
  EXPECT_EQ(DigestParts(kWord * 2, kDigestPart - kWord), 2);
  EXPECT_EQ(DigestParts(MiB(2), MiB(6)), 8);
}

TEST(DigestTest, TheKernelIsThere) {
  const std::string ptx = kDigestPtx;
  EXPECT_NE(ptx.find(std::string(".visible .entry ") + kDigestFunction + "("), std::string::npos);
  EXPECT_NE(ptx.find(".target sm_70"), std::string::npos);
  EXPECT_NE(ptx.find(".maxntid " + std::to_string(kDigestThreads) + ", 1, 1"), std::string::npos);
  EXPECT_EQ(ptx.find(".local"), std::string::npos) << "the kernel needs a stack";
  EXPECT_EQ(ptx.find(".extern"), std::string::npos);
}

}  // namespace
}  // namespace torpor
