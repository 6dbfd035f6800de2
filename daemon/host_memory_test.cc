#include "daemon/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string root_ = testing::TempDir() + "host_memory_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

constexpr char kMemInfo[] =
    "MemTotal:       16384000 kB\nMemFree:         1024 kB\nMemAvailable:    8388608 kB\n";

TEST_F(HostMemoryTest, WithoutLimitsItIsWhatTheMachineHas) {
  Write("/proc/meminfo", kMemInfo);
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(8));
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(8));
}

TEST_F(HostMemoryTest, CgroupV2) {
  Write("/proc/meminfo", kMemInfo);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/a/memory.current", "1610612736\n");
  Write("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 402653184\nactive_file 134217728\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(3));
  Write("/sys/fs/cgroup/a/b/memory.max", "1048576\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "2097152\n");
  EXPECT_EQ(*AvailableHostMemory(root_), Bytes(0));
}

// A group above another one limits it, too, and a limit that only slows down is one.
TEST_F(HostMemoryTest, CgroupV2High) {
  Write("/proc/meminfo", kMemInfo);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/memory.high", "2147483648\n");
  Write("/sys/fs/cgroup/a/memory.current", "1073741824\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "4294967296\n");
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(1));
}

TEST_F(HostMemoryTest, CgroupV2BesideV1) {
  Write("/proc/meminfo", kMemInfo);
  Write("/proc/self/cgroup", "4:memory:/g\n0::/u\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(4));
  Write("/sys/fs/cgroup/unified/u/memory.max", "1073741824\n");
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(1));
}

TEST_F(HostMemoryTest, CgroupV1) {
  Write("/proc/meminfo", kMemInfo);
  Write("/proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/g\n1:name=systemd:/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/g/memory.limit_in_bytes", "2147483648\n");
  Write("/sys/fs/cgroup/memory/g/memory.usage_in_bytes", "1073741824\n");
  EXPECT_EQ(*AvailableHostMemory(root_), GiB(1));
}

TEST_F(HostMemoryTest, NoNumberIsAnError) {
  EXPECT_THAT(AvailableHostMemory(root_), HasReason("HOST_MEMORY_UNKNOWN"));
}

TEST_F(HostMemoryTest, ThisMachineHasSome) {
  const Result<Bytes> available = AvailableHostMemory();
  ASSERT_THAT(available, IsOk());
  EXPECT_GT(*available, MiB(1));
  EXPECT_LT(*available, GiB(1 << 20));
}

}  // namespace
}  // namespace torpor
