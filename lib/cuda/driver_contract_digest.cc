// Digests of device memory.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/digest.h"
#include "lib/cuda/driver_contract.h"

namespace torpor {
namespace {

constexpr char kInvalid[] = "DRIVER_INVALID_VALUE";
const PartDigest kUntouched = {0x1122334455667788, 0x99aabbccddeeff00};

// Registered memory for results.
class Results {
 public:
  Results(Driver& driver, int64_t parts)
      : driver_(driver),
        size_(RoundUp(Bytes(parts * static_cast<int64_t>(sizeof(PartDigest))),
                      Bytes(::sysconf(_SC_PAGESIZE)))) {
    memory_ =
        ::mmap(nullptr, size_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_THAT(driver_.RegisterHost(memory_, size_), IsOk());
    std::fill(at(), at(count()), kUntouched);
  }
  ~Results() {
    EXPECT_THAT(driver_.UnregisterHost(memory_), IsOk());
    ::munmap(memory_, size_.size());
  }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  PartDigest* at(int64_t part = 0) { return static_cast<PartDigest*>(memory_) + part; }
  int64_t count() const { return size_.value() / static_cast<int64_t>(sizeof(PartDigest)); }

 private:
  Driver& driver_;
  const Bytes size_;
  void* memory_;
};

std::vector<uint8_t> Pattern(Bytes size) {
  std::vector<uint8_t> bytes(size.size());
  uint64_t state = 99;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return bytes;
}

// What Digest must give for `bytes` at `position`.
std::vector<PartDigest> Expected(const std::vector<uint8_t>& bytes, Bytes begin, Bytes size,
                                 Bytes position) {
  std::vector<PartDigest> digests;
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data()) + begin.value();
  for (Bytes done; done < size;) {
    const Bytes at = position + done;
    const Bytes step = std::min(size - done, kDigestPart - at % kDigestPart);
    digests.push_back(DigestBytes(data + done.value(), step, at));
    done += step;
  }
  return digests;
}

TEST_P(DriverContractTest, DigestsAreThoseOfTheBytes) {
  const Bytes size = RoundUp(kDigestPart * 5, unit());
  const DeviceAddress address = MapNew(size);
  const std::vector<uint8_t> pattern = Pattern(size);
  Write(address, pattern);
  Results results(driver(), 16);
  const struct {
    Bytes begin;
    Bytes size;
    Bytes position;
  } ranges[] = {
      {Bytes(0), kDigestPart, Bytes(0)},
      {Bytes(0), kDigestPart * 5, Bytes(0)},
      {Bytes(0), kDigestPart * 3, kDigestPart * 7},
      {Bytes(0), Bytes(16), Bytes(0)},
      {Bytes(16), Bytes(16), kDigestPart - Bytes(16)},
      {Bytes(32), Bytes(32), kDigestPart - Bytes(16)},  // two parts
      {KiB(64), KiB(64), KiB(64)},                      // inside one
      {KiB(4), kDigestPart * 4, KiB(252)},              // the last one full
      {Bytes(48), kDigestPart * 4 + Bytes(4112), KiB(200) + Bytes(16)},
      {KiB(64), kDigestPart * 2, GiB(5000) + KiB(64)},
      {Bytes(16), kDigestPart - Bytes(32), Bytes(16)},
      {Bytes(0), Bytes(4080), Bytes(0)},
      {Bytes(0), Bytes(8208), Bytes(0)},
  };
  for (const auto& [begin, length, position] : ranges) {
    SCOPED_TRACE(::testing::Message()
                 << begin.value() << " + " << length.value() << " at " << position.value());
    std::fill(results.at(), results.at(results.count()), kUntouched);
    const std::vector<PartDigest> expected = Expected(pattern, begin, length, position);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), DigestParts(length, position));
    ASSERT_THAT(driver().Digest(stream(), results.at(1), address + begin, length, position),
                IsOk());
    ASSERT_THAT(Wait(stream()), IsOk());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), results.at(1)));
    EXPECT_EQ(*results.at(), kUntouched);
    EXPECT_EQ(*results.at(1 + static_cast<int64_t>(expected.size())), kUntouched);
  }
}

TEST_P(DriverContractTest, DigestsSpanMappings) {
  const DeviceAddress address = Reserve(unit() * 2);
  MapWithAccess(address, unit(), Create(unit()));
  MapWithAccess(address + unit(), unit(), Create(unit()));
  const std::vector<uint8_t> pattern = Pattern(unit() * 2);
  Write(address, pattern);
  Results results(driver(), DigestParts(unit() * 2, KiB(128)));
  ASSERT_THAT(driver().Digest(stream(), results.at(), address, unit() * 2, KiB(128)), IsOk());
  ASSERT_THAT(Wait(stream()), IsOk());
  const std::vector<PartDigest> expected = Expected(pattern, Bytes(0), unit() * 2, KiB(128));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), results.at()));
}

TEST_P(DriverContractTest, DigestsOfALargeRange) {
  const DeviceAddress address = MapNew(block());
  const std::vector<uint8_t> pattern = Pattern(block());
  Write(address, pattern);
  const int64_t parts = block() / kDigestPart;
  Results results(driver(), parts * 3);
  // Many at once, as much apart as together.
  ASSERT_THAT(driver().Digest(stream(), results.at(), address, block(), Bytes(0)), IsOk());
  for (int64_t part = 0; part < parts; ++part) {
    const Bytes offset = kDigestPart * part;
    ASSERT_THAT(
        driver().Digest(stream(), results.at(parts + part), address + offset, kDigestPart, offset),
        IsOk());
  }
  ASSERT_THAT(driver().Digest(stream(), results.at(parts * 2), address, block(), Bytes(0)), IsOk());
  ASSERT_THAT(Wait(stream()), IsOk());
  const std::vector<PartDigest> expected = Expected(pattern, Bytes(0), block(), Bytes(0));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), results.at(parts * round))) << round;
  }
}

TEST_P(DriverContractTest, DigestsKeepTheOrderOfTheirStream) {
  const DeviceAddress address = MapNew(block());
  Results results(driver(), block() / kDigestPart * 2);
  const int64_t parts = block() / kDigestPart;
  Fill(address, block(), 0x5a);
  ASSERT_THAT(driver().Digest(stream(), results.at(), address, block(), Bytes(0)), IsOk());
  ASSERT_THAT(driver().Clear(stream(), address, block()), IsOk());
  ASSERT_THAT(driver().Digest(stream(), results.at(parts), address, block(), Bytes(0)), IsOk());
  ASSERT_THAT(Wait(stream()), IsOk());
  std::vector<uint8_t> bytes(block().size(), 0x5a);
  std::vector<PartDigest> expected = Expected(bytes, Bytes(0), block(), Bytes(0));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), results.at()));
  bytes.assign(block().size(), 0);
  expected = Expected(bytes, Bytes(0), block(), Bytes(0));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), results.at(parts)));
}

TEST_P(DriverContractTest, DigestsNeedReadAccessOnly) {
  const DeviceAddress address = Reserve(unit());
  const MemoryHandle handle = Create(unit());
  MapWithAccess(address, unit(), handle);
  const std::vector<uint8_t> pattern = Pattern(unit());
  Write(address, pattern);
  const DeviceAddress second = Reserve(unit());
  ASSERT_THAT(driver().Map(second, unit(), handle), IsOk());
  Results results(driver(), DigestParts(unit(), Bytes(0)));
  EXPECT_THAT(driver().Digest(stream(), results.at(), second, unit(), Bytes(0)),
              HasReason(kInvalid));
  ASSERT_THAT(driver().SetAccess(second, unit(), Access::kReadOnly), IsOk());
  ASSERT_THAT(driver().Digest(stream(), results.at(), second, unit(), Bytes(0)), IsOk());
  ASSERT_THAT(Wait(stream()), IsOk());
  const std::vector<PartDigest> expected = Expected(pattern, Bytes(0), unit(), Bytes(0));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), results.at()));
}

TEST_P(DriverContractTest, DigestsOfBadRangesAreRefused) {
  const DeviceAddress address = Reserve(unit() * 3);
  MapWithAccess(address, unit(), Create(unit()));
  MapWithAccess(address + unit() * 2, unit(), Create(unit()));
  Results results(driver(), DigestParts(unit() * 3, Bytes(0)));
  const auto digest = [&](PartDigest* to, DeviceAddress from, Bytes size, Bytes position) {
    return driver().Digest(stream(), to, from, size, position);
  };
  EXPECT_THAT(digest(results.at(), address + unit(), unit(), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, unit() * 2, Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, unit() * 3, Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address + (unit() - Bytes(16)), Bytes(32), Bytes(0)),
              HasReason(kInvalid));
  EXPECT_THAT(digest(nullptr, address, unit(), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, unit() - Bytes(8), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address + Bytes(8), Bytes(16), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, unit(), Bytes(8)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, Bytes(-16), Bytes(0)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, unit(), Bytes(-16)), HasReason(kInvalid));
  EXPECT_THAT(digest(results.at(), address, Bytes(-16), kDigestPart), HasReason(kInvalid));
  EXPECT_THAT(driver().Digest(StreamId(), results.at(), address, unit(), Bytes(0)),
              HasReason(kInvalid));
  auto* const odd = reinterpret_cast<PartDigest*>(reinterpret_cast<uintptr_t>(results.at()) + 8);
  EXPECT_THAT(digest(odd, address, Bytes(16), Bytes(0)), HasReason(kInvalid));
  const auto pageable = std::make_unique<PartDigest>();
  EXPECT_THAT(digest(pageable.get(), address, Bytes(16), Bytes(0)), HasReason(kInvalid));
  ASSERT_THAT(Wait(stream()), IsOk()) << "nothing was queued";
  EXPECT_EQ(*results.at(), kUntouched);

  EXPECT_THAT(digest(results.at(), address, Bytes(0), Bytes(0)), IsOk());
  ASSERT_THAT(Wait(stream()), IsOk());
  EXPECT_EQ(*results.at(), kUntouched) << "nothing was digested";
  EXPECT_THAT(digest(results.at(), address, unit(), Bytes(0)), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
}

TEST_P(DriverContractTest, DigestsStayWithinTheirRegistration) {
  const DeviceAddress address = MapNew(RoundUp(kDigestPart * 2, unit()));
  Results results(driver(), 1);
  PartDigest* const last = results.at(results.count() - 1);
  EXPECT_THAT(driver().Digest(stream(), last, address, kDigestPart * 2, Bytes(0)),
              HasReason(kInvalid));
  EXPECT_THAT(driver().Digest(stream(), last, address, kDigestPart, Bytes(0)), IsOk());
  EXPECT_THAT(Wait(stream()), IsOk());
  EXPECT_NE(*last, kUntouched);
}

}  // namespace
}  // namespace torpor
