// Workers that are short of file descriptors.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/base/status_matchers.h"
#include "tests/core/core_fixture.h"
#include "tests/harness/worker_process.h"

namespace torpor {
namespace {

class a_full_fd_table : public CoreFixture {
 protected:
  static constexpr int kExtents = 100;

  // A worker whose weights stay in kExtents pieces: what lies between them is freed.
  void SetUp() override {
    Start();
    auto worker = WorkerProcess::Connect(directory_ + "/worker.sock", "short");
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    std::vector<std::string> between;
    for (int i = 1; i <= kExtents; ++i) {
      const auto id = worker_->Allocate("weights", "64KiB", i);
      ASSERT_THAT(id, IsOk());
      ids_.push_back(*id);
      const auto gap = worker_->Ask("alloc weights 64KiB");
      ASSERT_THAT(gap, IsOk());
      between.push_back(gap->substr(0, gap->find(' ')));
    }
    for (const std::string& id : between) ASSERT_THAT(worker_->Ask("free " + id), IsOk());
  }

  void LetHave(int descriptors) {
    ASSERT_THAT(worker_->Ask("nofile " + std::to_string(descriptors)), IsOk());
  }

  TagStats Weights() {
    for (const WorkerStats& stats : Usage().workers) {
      for (const TagStats& tag : stats.tags) {
        if (tag.tag == "weights") return tag;
      }
    }
    return TagStats();
  }

  void ExpectAllThere() {
    EXPECT_EQ(Weights().resident, KiB(64) * kExtents);
    for (int i = 1; i <= kExtents; ++i) {
      ASSERT_THAT(
          worker_->Ask("check " + ids_[static_cast<size_t>(i) - 1] + " " + std::to_string(i)),
          IsOk());
    }
    ExpectBooksAgree();
  }

  std::unique_ptr<WorkerProcess> worker_;
  std::vector<std::string> ids_;
};

TEST_F(a_full_fd_table, AWakeMakesDoWithFew) {
  for (const int descriptors : {64, 24}) {
    LetHave(descriptors);
    ASSERT_THAT(Sleep(All()), IsOk());
    ASSERT_THAT(Wake(All()), IsOk());
    EXPECT_EQ(Weights().extents, kExtents);
    ExpectAllThere();
  }
}

TEST_F(a_full_fd_table, AWakeWithoutAnyLosesNothing) {
  ASSERT_THAT(Sleep(All()), IsOk());
  LetHave(0);
  const auto woken = Wake(All());
  EXPECT_THAT(woken, HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_THAT(woken, HasCode(Code::kResourceExhausted));
  WaitForRest();
  EXPECT_EQ(Weights().offloaded, KiB(64) * kExtents);
  EXPECT_EQ(Weights().resident, Bytes(0));
  ExpectBooksAgree();
  LetHave(-1);
  ASSERT_THAT(Wake(All()), IsOk());
  ExpectAllThere();
}

TEST_F(a_full_fd_table, ASleepIsRolledBackWithFew) {
  LetHave(24);
  driver_->FailNth(CallKind::kCopyToHost, 1, Internal("FAULT", "injected"));
  EXPECT_THAT(Sleep(All()), HasReason("FAULT"));
  WaitForRest();
  ExpectAllThere();
}

TEST_F(a_full_fd_table, ASleepIsRolledBackOnceThereIsRoom) {
  LetHave(0);
  driver_->FailNth(CallKind::kCopyToHost, 1, Internal("FAULT", "injected"));
  const auto slept = Sleep(All());
  EXPECT_THAT(slept, HasReason("FAULT"));
  EXPECT_EQ(slept.status().details().count("rollback_pending"), 1u);
  LetHave(-1);
  WaitForRest();
  ExpectAllThere();
}

TEST_F(a_full_fd_table, AnAllocationWithoutAnyFailsAlone) {
  const Bytes free_before = Usage().budget.free;
  LetHave(0);
  EXPECT_THAT(worker_->Ask("alloc kv_cache 64KiB"), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_EQ(Usage().budget.free, free_before);
  ExpectAllThere();
  LetHave(-1);
  EXPECT_THAT(worker_->Ask("alloc kv_cache 64KiB"), IsOk());
}

}  // namespace
}  // namespace torpor
