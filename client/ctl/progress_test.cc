#include "client/ctl/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "client/ctl/text_width.h"

namespace torpor::ctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

v1::WatchResponse Progress(const char* operation, int64_t ms, int64_t done, int64_t total) {
  v1::WatchResponse response;
  response.mutable_time()->set_seconds(1000 + ms / 1000);
  response.mutable_time()->set_nanos(static_cast<int32_t>(ms % 1000 * 1'000'000));
  v1::ProgressEvent& progress = *response.mutable_progress();
  progress.set_phase(v1::OPERATION_PHASE_COPY);
  progress.set_kind(v1::OPERATION_KIND_SLEEP);
  progress.set_operation_id(operation);
  progress.set_worker_id("w-1");
  progress.set_tag("weights");
  progress.set_done_bytes(done);
  progress.set_total_bytes(total);
  return response;
}

TEST(ProgressTest, BarsAddUp) {
  EXPECT_THAT(BarCells(10, {50, 25}, 100), ElementsAre(5u, 3u));
  EXPECT_THAT(BarCells(10, {90, 90}, 100), ElementsAre(9u, 1u));
  EXPECT_THAT(BarCells(10, {1, -5}, 0), ElementsAre(0u, 0u));
  EXPECT_THAT(BarCells(10, {-1, 100}, 100), ElementsAre(0u, 10u));
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(BarCells(10, {kHuge, kHuge}, kHuge), ElementsAre(10u, 0u));
}

TEST(ProgressTest, KnowsWhatIsUnderWay) {
  Operations operations;
  EXPECT_THAT(operations.List(), IsEmpty());
  operations.Add(Progress("op-1", 0, 0, 4'000'000'000));
  EXPECT_EQ(operations.List().front().bytes_per_second, 0);
  operations.Add(Progress("op-1", 100, 1'000'000'000, 4'000'000'000));
  operations.Add(Progress("op-2", 100, 0, 0));
  ASSERT_EQ(operations.List().size(), 2u);
  EXPECT_DOUBLE_EQ(operations.List().front().bytes_per_second, 1e10);
  v1::WatchResponse ended;
  ended.mutable_operation()->set_change(v1::OPERATION_CHANGE_ENDED);
  ended.mutable_operation()->set_operation_id("op-1");
  operations.Add(ended);
  ASSERT_EQ(operations.List().size(), 1u);
  operations.Clear();
  EXPECT_THAT(operations.List(), IsEmpty());
}

TEST(ProgressTest, DrawsABar) {
  Operations operations;
  operations.Add(Progress("op-1", 0, 0, 8ll << 30));
  operations.Add(Progress("op-1", 100, 3ll << 30, 8ll << 30));
  const Moving moving = operations.List().front();
  EXPECT_EQ(ProgressBar(moving, 76),
            "w-1 copies weights  [#######............]   38%  3.00 of 8.00 GiB, 32.2 GB/s");
  EXPECT_EQ(TextWidth(ProgressBar(moving, 200)), 97u);
  EXPECT_EQ(ProgressBar(moving, 60), "w-1 copies weights   38%  3.00 of 8.00 GiB, 32.2 GB/s");
  for (size_t width = 1; width < 100; ++width) {
    EXPECT_LE(TextWidth(ProgressBar(moving, width)), width);
  }
  Moving waits = moving;
  waits.latest.set_phase(v1::OPERATION_PHASE_QUIESCE);
  waits.latest.set_total_bytes(0);
  waits.bytes_per_second = 0;
  EXPECT_EQ(ProgressBar(waits, 80), "w-1 waits for the worker to come to rest");
  EXPECT_THAT(ShareText(512 << 20, 1 << 30), HasSubstr("512.00 MiB of 1.00 GiB"));
}

}  // namespace
}  // namespace torpor::ctl
