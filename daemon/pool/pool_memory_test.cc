#include "daemon/pool/pool_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
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

class NamedPoolTest : public testing::Test {
 protected:
  NamedPoolTest() {
    char name[] = "/dev/shm/torpor-test-XXXXXX";
    if (::mkdtemp(name) != nullptr) folder_ = name;
  }
  ~NamedPoolTest() override { std::filesystem::remove_all(folder_); }
  size_t Files() const {
    const std::filesystem::directory_iterator files(folder_);
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }
  std::string folder_;
};

TEST_F(NamedPoolTest, IsThereAgainWhenNobodyHasHadIt) {
  auto memory = PoolMemory::Create(folder_, "torpor-GPU-1", MiB(9), kSlab);
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT((*memory)->description(), testing::StartsWith("file, "));
  const std::string path = (*memory)->path();
  EXPECT_THAT(path, testing::StartsWith(folder_ + "/torpor-GPU-1-"));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ExpectWorks(**memory, MiB(9));
  std::memcpy((*memory)->data(2), "kept", 4);
  EXPECT_THAT(PoolMemory::Open(path, "file", MiB(9), kSlab), HasReason("POOL_IN_USE"));
  memory->reset();
  EXPECT_THAT(PoolMemory::Open(path, "file", MiB(8), kSlab), HasReason("POOL_CHANGED"));
  auto again = PoolMemory::Open(path, "file", MiB(9), kSlab);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(std::memcmp((*again)->data(2), "kept", 4), 0);
  EXPECT_EQ((*again)->path(), path);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  UniqueFd file(::fcntl((*again)->fd(), F_DUPFD_CLOEXEC, 0));
  again->reset();
  const auto removed = PoolMemory::Adopt(std::move(file), path, "file", MiB(9), kSlab);
  ASSERT_THAT(removed, IsOk());
  EXPECT_EQ((*removed)->path(), "");
  EXPECT_EQ((*removed)->description(), "file, removed");
  EXPECT_THAT(PoolMemory::Open(path, "file", MiB(9), kSlab), HasReason("POOL_MISSING"));
}

TEST_F(NamedPoolTest, RemovesWhatWasLeftUnderItsNameAlone) {
  for (const char* device : {"a", "a", "b", "a-123456"}) {
    ASSERT_THAT(PoolMemory::Create(folder_, std::string("torpor-") + device, MiB(4), kSlab),
                IsOk());
  }
  EXPECT_EQ(Files(), 3u);
  const auto used = PoolMemory::Create(folder_, "torpor-b", MiB(4), kSlab);
  ASSERT_THAT(used, IsOk());
  ASSERT_THAT(PoolMemory::Create(folder_, "torpor-b", MiB(4), kSlab), IsOk());
  EXPECT_EQ(Files(), 4u);
  EXPECT_TRUE(std::filesystem::exists((*used)->path()));
}

TEST_F(NamedPoolTest, RefusesWhatCannotHoldIt) {
  EXPECT_THAT(PoolMemory::Create(folder_ + "/none", "p", MiB(4), kSlab),
              HasReason("POOL_DIR_UNUSABLE"));
  EXPECT_THAT(PoolMemory::Create("/proc", "p", MiB(4), kSlab), HasReason("POOL_DIR_UNUSABLE"));
  const auto large = PoolMemory::Create(folder_, "p", GiB(1) * (int64_t{1} << 14), MiB(256));
  struct statfs system {};
  ASSERT_EQ(::statfs(folder_.c_str(), &system), 0);
  if (system.f_blocks != 0) {
    EXPECT_THAT(large, HasReason("POOL_DIR_TOO_SMALL"));
  }
  EXPECT_EQ(Files(), large.ok() ? 1u : 0u);
}

// A file system that others fill must not end the process.
TEST_F(NamedPoolTest, AFullFileSystemIsAnError) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=16m") != 0) {
      ::_exit(77);
    }
    const auto memory = PoolMemory::Create(folder_, "p", MiB(12), kSlab);
    const int other = ::open((folder_ + "/other").c_str(), O_CREAT | O_WRONLY, 0600);
    if (!memory.ok() || ::fallocate(other, 0, 0, MiB(10).value()) != 0) ::_exit(1);
    if (!(*memory)->Populate(0, Bytes(0), kSlab).ok()) ::_exit(2);
    const Status full = (*memory)->Populate(1, Bytes(0), kSlab);
    // Nor where a pool begins.
    while (::fallocate(other, 0, ::lseek(other, 0, SEEK_END), 4096) == 0) continue;
    if (!PoolMemory::Create(folder_, "q", Bytes(0), kSlab).ok()) ::_exit(4);
    ::_exit(full.reason() == "HOST_MEMORY_EXHAUSTED" ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "nothing can be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
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
