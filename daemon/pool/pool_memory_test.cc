#include "daemon/pool/pool_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/base/unique_fd.h"

namespace torpor {
namespace {

constexpr Bytes kSlab = MiB(4);

// Bytes of `size` from `data` on that are in memory.
Bytes InMemory(const std::byte* data, Bytes size) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages(static_cast<size_t>(size.value() / page));
  EXPECT_EQ(::mincore(const_cast<std::byte*>(data), size.size(), pages.data()), 0);
  return Bytes(page * std::count_if(pages.begin(), pages.end(), [](int p) { return p & 1; }));
}

// What holds for all kinds.
void ExpectWorks(const PoolMemory& memory, Bytes size) {
  ASSERT_EQ(memory.slabs(), 3u);
  EXPECT_EQ(memory.size(), size);
  EXPECT_EQ(memory.size(2), size - kSlab * 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data(i)) % MiB(2).size(), 0u);
    EXPECT_EQ(memory.SlabAt(memory.data(i)), i);
    EXPECT_EQ(memory.SlabAt(memory.data(i) + memory.size(i).value() - 1), i);
    EXPECT_EQ(InMemory(memory.data(i), memory.size(i)), Bytes(0));
    if (i == 0) continue;
    EXPECT_GT(memory.data(i), memory.data(i - 1) + memory.size(i - 1).value());
  }
  EXPECT_THAT(memory.Populate(1, Bytes(0), memory.size(1)), IsOk());
  EXPECT_THAT(memory.Populate(2, Bytes(0), memory.size(2)), IsOk());
  EXPECT_EQ(InMemory(memory.data(1), memory.size(1)), memory.size(1));
  std::memset(memory.data(1), 7, memory.size(1).size());
  EXPECT_THAT(memory.Populate(1, Bytes(0), memory.size(1)), IsOk());
  EXPECT_EQ(memory.data(1)[MiB(3).value()], std::byte{7});  // populating again keeps contents
  memory.Drop(1);
  EXPECT_EQ(InMemory(memory.data(1), memory.size(1)), Bytes(0));
  EXPECT_EQ(memory.data(1)[MiB(3).value()], std::byte{0});
}

// The bytes can be seen through the descriptor, where the offset says, once the pool is gone.
void ExpectOutlives(std::unique_ptr<PoolMemory> memory) {
  std::memcpy(memory->data(2), "kept", 4);
  struct stat info {};
  ASSERT_EQ(::fstat(memory->fd(), &info), 0);
  EXPECT_EQ(info.st_size, memory->size().value());
  EXPECT_EQ(info.st_nlink, 0u);
  const UniqueFd kept(::dup(memory->fd()));
  memory.reset();
  char bytes[4] = {};
  ASSERT_EQ(::pread(kept.get(), bytes, sizeof bytes, (kSlab * 2).value()), 4);
  EXPECT_EQ(std::string(bytes, 4), "kept");
}

TEST(PoolMemoryTest, Memfd) {
  auto memory = PoolMemory::Reserve(PoolMemoryKind::kMemfd, MiB(9), kSlab);
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT((*memory)->description(), testing::StartsWith("memfd, "));
  ExpectWorks(**memory, MiB(9));
  ExpectOutlives(*std::move(memory));
}

TEST(PoolMemoryTest, Tmpfs) {
  auto memory = PoolMemory::Reserve(PoolMemoryKind::kTmpfs, MiB(9), kSlab);
  if (!memory.ok()) {
    EXPECT_THAT(memory, HasReason("POOL_MEMORY_UNAVAILABLE"));
    EXPECT_THAT(memory, HasCode(Code::kFailedPrecondition));
    GTEST_SKIP() << "no tmpfs here: " << memory.status().ToString();
  }
  EXPECT_THAT((*memory)->description(), testing::StartsWith("tmpfs, "));
  ExpectWorks(**memory, MiB(9));
  ExpectOutlives(*std::move(memory));
}

TEST(PoolMemoryTest, Anonymous) {
  const auto memory = PoolMemory::Reserve(PoolMemoryKind::kAnonymous, MiB(9), kSlab);
  ASSERT_THAT(memory, IsOk());
  EXPECT_EQ((*memory)->description(), "anonymous");
  EXPECT_EQ((*memory)->fd(), -1);
  ExpectWorks(**memory, MiB(9));
}

TEST(PoolMemoryTest, AutoIsNeverRefused) {
  const auto memory = PoolMemory::Reserve(PoolMemoryKind::kAuto, MiB(9), kSlab);
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT((*memory)->description(),
              testing::AnyOf("memfd, huge pages", "tmpfs, huge pages", "anonymous"));
  EXPECT_EQ((*memory)->fd() >= 0, (*memory)->description() != "anonymous");
  ExpectWorks(**memory, MiB(9));
}

TEST(PoolMemoryTest, NothingIsAlsoASize) {
  for (const PoolMemoryKind kind : {PoolMemoryKind::kMemfd, PoolMemoryKind::kAnonymous}) {
    const auto memory = PoolMemory::Reserve(kind, Bytes(0), kSlab);
    ASSERT_THAT(memory, IsOk());
    EXPECT_EQ((*memory)->slabs(), 0u);
    EXPECT_EQ((*memory)->size(), Bytes(0));
  }
}

TEST(PoolMemoryTest, MoreThanThereAreAddressesForIsRefused) {
  const auto memory =
      PoolMemory::Reserve(PoolMemoryKind::kAnonymous, GiB(1) * (int64_t{1} << 20), kSlab * 256);
  ASSERT_THAT(memory, HasReason("HOST_MEMORY_EXHAUSTED"));
  EXPECT_EQ(memory.status().Number("requested_bytes"), int64_t{1} << 50);
}

}  // namespace
}  // namespace torpor
