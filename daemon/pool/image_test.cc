#include "daemon/pool/image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
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
    TORPOR_ASSIGN_OR_RETURN(auto image, images_.Create(size, std::move(draw)));
    for (const HostPool::Block& block : image->blocks()) {
      TORPOR_RETURN_IF_ERROR(pool_.AwaitPinned(block.data, block.size, nullptr));
    }
    return image;
  }
  // Room in the host budget, by what can be drawn of it.
  bool HasRoom(Bytes size) { return admission_.DrawHost(size, std::string()).ok(); }

  // The chunks cover the image's bytes in order, without a part of the pool in two of them.
  static void ExpectWhole(const Image& image) {
    Bytes length{};
    const std::byte* end = nullptr;
    for (const ImageChunk& chunk : image.chunks()) {
      EXPECT_EQ(chunk.offset, length);
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
  ImageStore images_{pool_};
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

// --- Clean images

class CleanImageTest : public ImageTest {
 protected:
  Draw MakeDraw(Bytes size) { return *admission_.DrawHost(size, std::string()); }
  bool Hold(Image& image) {
    Draw draw = MakeDraw(image.size());
    return images_.Hold(image, draw);
  }
};

TEST_F(CleanImageTest, LeavesItsRoomToOthersAndKeepsItsBytes) {
  const auto image = *Create(MiB(16));
  image->chunks()[3].digest = PartDigest{1, 2};
  images_.Retire(*image);
  EXPECT_FALSE(image->held());
  EXPECT_EQ(images_.stats().clean, MiB(16));
  EXPECT_EQ(images_.stats().pool.used, Bytes(0));
  EXPECT_TRUE(HasRoom(MiB(16)));
  ASSERT_TRUE(Hold(*image));
  EXPECT_TRUE(image->held());
  EXPECT_EQ(images_.stats().clean, Bytes(0));
  EXPECT_EQ(images_.stats().pool.used, MiB(16));
  EXPECT_FALSE(HasRoom(HostPool::kUnit));
  EXPECT_EQ(image->chunks()[3].digest, (PartDigest{1, 2}));
}

TEST_F(CleanImageTest, TheLeastRecentlyUsedGoFirst) {
  std::vector<std::shared_ptr<Image>> images;
  images.reserve(4);
  for (int i = 0; i < 4; ++i) images.push_back(*Create(MiB(4)));
  for (const int i : {2, 0, 3, 1}) images_.Retire(*images[static_cast<size_t>(i)]);
  ASSERT_TRUE(Hold(*images[2]));
  images_.Retire(*images[2]);  // now the most recently used
  const auto fresh = *Create(MiB(6));
  EXPECT_FALSE(Hold(*images[0]));
  EXPECT_FALSE(Hold(*images[3]));
  EXPECT_EQ(images[0]->stored(), Bytes(0));
  EXPECT_TRUE(Hold(*images[1]));
  EXPECT_TRUE(Hold(*images[2]));
  EXPECT_EQ(images_.stats().pool.used, MiB(14));
  ExpectWhole(*fresh);
}

TEST_F(CleanImageTest, NoneIsTakenForWhatCannotFitAnyway) {
  const auto held = *Create(MiB(12));
  const auto clean = *Create(MiB(4));
  images_.Retire(*clean);
  EXPECT_THAT(images_.Create(MiB(8), Draw()), HasReason("HOST_POOL_EXHAUSTED"));
  EXPECT_TRUE(Hold(*clean));
}

TEST_F(CleanImageTest, EndsWithItsSegment) {
  auto image = *Create(MiB(4));
  images_.Retire(*image);
  image.reset();
  EXPECT_EQ(images_.stats().clean, Bytes(0));
  EXPECT_EQ(pool_.stats().used, Bytes(0));
  EXPECT_THAT(Create(MiB(16)), IsOk());
}

TEST_F(CleanImageTest, ManyUsersAtOnce) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::shared_ptr<Image>> mine;  // clean ones
      for (int i = 0; i < 500; ++i) {
        auto image = Create(MiB(1 + static_cast<int64_t>(random() % 4)));
        ASSERT_THAT(image, IsOk()) << "although the others draw no more than the rest";
        std::memset((*image)->chunks()[0].data, t, 64);
        if (!mine.empty() && random() % 2 == 0) {
          const auto old = mine[random() % mine.size()];
          image->reset();
          if (!Hold(*old)) continue;
          EXPECT_EQ(old->chunks()[0].data[63], static_cast<std::byte>(t));
          images_.Retire(*old);
          continue;
        }
        images_.Retire(**image);
        mine.push_back(*image);
        if (mine.size() > 4) mine.erase(mine.begin());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_.stats().used, Bytes(0));
  EXPECT_TRUE(HasRoom(MiB(16)));
}

}  // namespace
}  // namespace torpor
