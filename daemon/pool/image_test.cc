#include "daemon/pool/image.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "daemon/admission/admission.h"
#include "daemon/memory/device_memory.h"
#include "lib/base/clock.h"
#include "lib/base/status_matchers.h"
#include "lib/cuda/host_driver.h"

namespace torpor {
namespace {

class ImageTest : public ::testing::Test {
 protected:
  Result<std::shared_ptr<Image>> Create(Bytes size) {
    TORPOR_ASSIGN_OR_RETURN(Draw draw,
                            admission_.DrawHost(RoundUp(size, HostPool::kUnit), std::string()));
    return Image::Create(pool_, size, std::move(draw));
  }
  // Room in the host budget, by what can be drawn of it.
  bool HasRoom(Bytes size) { return admission_.DrawHost(size, std::string()).ok(); }

  // The chunks cover the image's bytes in order, without a part of the pool in two of them.
  static void ExpectWhole(const Image& image) {
    Bytes length{};
    const std::byte* end = nullptr;
    for (const ImageChunk& chunk : image.chunks()) {
      EXPECT_GT(chunk.length, Bytes(0));
      EXPECT_LE(chunk.length, kImageChunk);
      EXPECT_EQ(chunk.stored, chunk.length);
      EXPECT_EQ(chunk.encoding, Encoding::kPlain);
      EXPECT_FALSE(chunk.digest.has_value());
      EXPECT_NE(chunk.data, nullptr);
      for (const ImageChunk& other : image.chunks()) {
        if (&other == &chunk) continue;
        EXPECT_TRUE(other.data >= chunk.data + chunk.length.value() ||
                    chunk.data >= other.data + other.length.value());
      }
      length += chunk.length;
      end = chunk.data;
    }
    EXPECT_EQ(length, image.size());
    EXPECT_NE(end, nullptr);
  }

  std::unique_ptr<HostDriver> driver_ = *HostDriver::CreateDevice({"image", MiB(64), MiB(2)});
  DeviceMemory memory_{*driver_};
  Admission admission_{{Bytes(0), MiB(16)},
                       [this](auto accuracy) { return memory_.Measure(accuracy); },
                       Clock::Real()};
  HostPool pool_{*driver_, MiB(16)};
};

TEST_F(ImageTest, IsATableOfChunks) {
  const auto image = *Create(MiB(5));
  EXPECT_EQ(image->size(), MiB(5));
  EXPECT_EQ(image->stored(), MiB(5));
  ASSERT_EQ(image->chunks().size(), 3u);
  EXPECT_EQ(image->chunks()[0].length, MiB(2));
  EXPECT_EQ(image->chunks()[2].length, MiB(1));
  ExpectWhole(*image);
}

TEST_F(ImageTest, ALastChunkMayBeOdd) {
  const auto image = *Create(MiB(2) + Bytes(1000));
  EXPECT_EQ(image->stored(), MiB(2) + HostPool::kUnit);
  ASSERT_EQ(image->chunks().size(), 2u);
  EXPECT_EQ(image->chunks()[1].length, Bytes(1000));
  ExpectWhole(*image);
}

TEST_F(ImageTest, LivesInScatteredRemains) {
  std::vector<std::shared_ptr<Image>> images;
  images.reserve(16);
  for (int i = 0; i < 16; ++i) images.push_back(*Create(MiB(1)));
  for (int i = 0; i < 16; i += 2) images[i].reset();
  const auto image = *Create(MiB(7));
  EXPECT_GE(image->chunks().size(), 7u);
  ExpectWhole(*image);
}

TEST_F(ImageTest, GivesRoomAndDrawBackAtItsEnd) {
  auto image = *Create(MiB(16));
  EXPECT_EQ(pool_.stats().used, MiB(16));
  EXPECT_FALSE(HasRoom(HostPool::kUnit));
  image.reset();
  EXPECT_EQ(pool_.stats().used, Bytes(0));
  EXPECT_TRUE(HasRoom(MiB(16)));
}

TEST_F(ImageTest, GivesTheDrawBackWhenThePoolRefuses) {
  const auto held = *pool_.Allocate(MiB(12), MiB(2));
  EXPECT_THAT(Create(MiB(8)), HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_TRUE(HasRoom(MiB(16)));
  EXPECT_EQ(pool_.stats().used, MiB(12));
  pool_.Free(held);
}

}  // namespace
}  // namespace torpor
