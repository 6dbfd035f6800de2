#include "daemon/pool/cpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace torpor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CpusTest, ReadsAList) {
  EXPECT_THAT(ParseCpuList("0\n"), ElementsAre(0));
  EXPECT_THAT(ParseCpuList("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(ParseCpuList("5,1-2,2"), ElementsAre(1, 2, 5));
  for (const char* bad : {"", "\n", "x", "1-", "-1", "3-1", "1;2", "0-99999999999"}) {
    EXPECT_THAT(ParseCpuList(bad), IsEmpty()) << bad;
  }
}

TEST(CpusTest, ANodeWithoutAllowedCpusCountsAsNone) {
  const std::vector<int> all = CpusOfNode(-1);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(CpusOfNode(4711), all);
  const std::string root = testing::TempDir() + "cpus_root";
  const std::string folder = root + "/sys/devices/system/node/node";
  std::filesystem::create_directories(folder + "0");
  std::filesystem::create_directories(folder + "1");
  std::ofstream(folder + "0/cpulist") << all.front() << ",1000\n";
  std::ofstream(folder + "1/cpulist") << "1001\n";
  EXPECT_THAT(CpusOfNode(0, root), ElementsAre(all.front()));
  EXPECT_EQ(CpusOfNode(1, root), all);
}

TEST(CpusTest, AThreadStaysWhereItIsTold) {
  const std::vector<int> all = CpusOfNode(-1);
  std::thread([&] {
    RunOn({all.back()});
    EXPECT_THAT(CpusOfNode(-1), ElementsAre(all.back()));
    RunOn({});
    EXPECT_THAT(CpusOfNode(-1), ElementsAre(all.back()));
  }).join();
  EXPECT_EQ(CpusOfNode(-1), all);
}

}  // namespace
}  // namespace torpor
