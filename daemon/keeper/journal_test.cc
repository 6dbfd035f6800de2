#include "daemon/keeper/journal.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status_matchers.h"

namespace torpor {
namespace {

std::vector<std::string> Encoded(const Ledger& ledger) {
  std::vector<std::string> bytes;
  for (const JournalRecord& record : ledger.Snapshot()) bytes.push_back(EncodeRecord(record));
  return bytes;
}

std::vector<JournalRecord> OneOfEach() {
  return {SessionOpened{WorkerId(7), "engine", "secret"},
          SegmentRecorded{SegmentId(1), WorkerId(7), "weights", MiB(2), MiB(4),
                          JournalState::kOffloaded},
          SegmentRecorded{SegmentId(2), WorkerId(7), "kv_cache", Bytes(0), MiB(2),
                          JournalState::kDiscarded},
          ExtentHeld{ExtentId(3), WorkerId(7), "weights", MiB(2), MiB(4)},
          ImageRecorded{SegmentId(1), {{MiB(64), MiB(2)}, {MiB(32), MiB(2)}}},
          ReservationMade{"r-1", "next", GiB(1), GiB(2), TimePoint(seconds(5)), true, false},
          ReservationRenewed{"r-1", TimePoint(seconds(9))},
          ImageDropped{SegmentId(1)},
          ExtentDropped{ExtentId(3)},
          SegmentFreed{SegmentId(2)},
          ReservationReleased{"r-1"},
          SessionClosed{WorkerId(7)}};
}

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/torpor-journal-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Journal> Open() {
    Result<std::unique_ptr<Journal>> journal = Journal::Open(directory_ + "/journal");
    EXPECT_THAT(journal, IsOk());
    return journal.ok() ? *std::move(journal) : nullptr;
  }

  std::string directory_;
};

TEST(RecordTest, EachReadsAsItWasWritten) {
  for (const JournalRecord& record : OneOfEach()) {
    const std::string bytes = EncodeRecord(record);
    const Result<JournalRecord> again = DecodeRecord(bytes);
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->index(), record.index());
    EXPECT_EQ(EncodeRecord(*again), bytes);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_THAT(DecodeRecord(bytes.substr(0, length)), HasReason("BAD_RECORD"));
    }
    EXPECT_THAT(DecodeRecord(bytes + "x"), HasReason("BAD_RECORD"));
  }
  EXPECT_THAT(DecodeRecord("\x7f"), HasReason("BAD_RECORD"));
}

TEST(RecordTest, AStateThatIsNoneIsRefused) {
  SegmentRecorded segment;
  segment.state = static_cast<JournalState>(3);
  EXPECT_THAT(DecodeRecord(EncodeRecord(segment)), HasReason("BAD_RECORD"));
}

TEST(LedgerTest, KnowsWhatIsStillTrue) {
  Ledger ledger;
  const std::vector<JournalRecord> records = OneOfEach();
  for (size_t i = 0; i < 7; ++i) ledger.Apply(records[i]);
  EXPECT_EQ(ledger.size(), 6u);
  EXPECT_EQ(ledger.reservations().at("r-1").expires, TimePoint(seconds(9)));
  EXPECT_EQ(ledger.images().at(SegmentId(1)).blocks.size(), 2u);
  for (size_t i = 7; i < records.size(); ++i) ledger.Apply(records[i]);
  EXPECT_EQ(ledger.size(), 0u);
}

TEST(LedgerTest, TheEndOfASessionEndsAllOfIt) {
  Ledger ledger;
  for (const uint64_t worker : {7, 8}) {
    ledger.Apply(SessionOpened{WorkerId(worker), "w", "s"});
    ledger.Apply(SegmentRecorded{SegmentId(worker), WorkerId(worker), "a", Bytes(0), MiB(2),
                                 JournalState::kOffloaded});
    ledger.Apply(ExtentHeld{ExtentId(worker), WorkerId(worker), "a", Bytes(0), MiB(2)});
    ledger.Apply(ImageRecorded{SegmentId(worker), {}});
  }
  ledger.Apply(SessionClosed{WorkerId(7)});
  EXPECT_EQ(ledger.size(), 4u);
  EXPECT_EQ(ledger.images().count(SegmentId(8)), 1u);
  ledger.Apply(
      SegmentRecorded{SegmentId(9), WorkerId(7), "a", Bytes(0), MiB(2), JournalState::kResident});
  ledger.Apply(ExtentHeld{ExtentId(9), WorkerId(7), "a", Bytes(0), MiB(2)});
  ledger.Apply(ImageRecorded{SegmentId(9), {}});
  EXPECT_EQ(ledger.size(), 4u);
}

TEST_F(JournalTest, IsAsItWasAfterEachRecord) {
  Ledger model;
  for (const JournalRecord& record : OneOfEach()) {
    ASSERT_THAT(Open()->Record(record), IsOk());
    model.Apply(record);
    EXPECT_EQ(Encoded(Open()->ledger()), Encoded(model));
  }
}

TEST_F(JournalTest, StaysSmallHoweverMuchHappens) {
  std::unique_ptr<Journal> journal = Open();
  ASSERT_THAT(journal->Record(SessionOpened{WorkerId(1), "w", "s"}), IsOk());
  ImageRecorded image{SegmentId(0), std::vector<RecordedBlock>(200)};
  for (uint64_t i = 0; i < 3000; ++i) {
    const SegmentId id(i % 20);
    image.segment = id;
    ASSERT_THAT(journal->Record(SegmentRecorded{id, WorkerId(1), "weights", Bytes(0), MiB(400),
                                                JournalState::kOffloaded}),
                IsOk());
    ASSERT_THAT(journal->Record(image), IsOk());
    ASSERT_LT(journal->size(), MiB(2));
    if (i % 3 == 0) ASSERT_THAT(journal->Record(ImageDropped{id}), IsOk());
  }
  const std::vector<std::string> last = Encoded(journal->ledger());
  journal.reset();
  EXPECT_EQ(Encoded(Open()->ledger()), last);
}

// Any records in any order, and a reopening now and then.
TEST_F(JournalTest, Property) {
  std::mt19937_64 random(6);
  const auto below = [&](uint64_t n) { return random() % n; };
  Ledger model;
  std::unique_ptr<Journal> journal = Open();
  for (int step = 0; step < 20000; ++step) {
    JournalRecord record = OneOfEach()[below(12)];
    std::visit(
        [&](auto& one) {
          using T = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<T, SessionOpened> || std::is_same_v<T, SessionClosed>) {
            one.worker = WorkerId(below(4));
          } else if constexpr (std::is_same_v<T, SegmentRecorded>) {
            one.segment = SegmentId(below(30));
            one.worker = WorkerId(below(4));
          } else if constexpr (std::is_same_v<T, ExtentHeld>) {
            one.extent = ExtentId(below(30));
            one.worker = WorkerId(below(4));
          } else if constexpr (std::is_same_v<T, ExtentDropped>) {
            one.extent = ExtentId(below(30));
          } else if constexpr (std::is_same_v<T, SegmentFreed> ||
                               std::is_same_v<T, ImageRecorded> ||
                               std::is_same_v<T, ImageDropped>) {
            one.segment = SegmentId(below(30));
          } else {
            one.id = "r-" + std::to_string(below(5));
          }
        },
        record);
    ASSERT_THAT(journal->Record(record), IsOk());
    model.Apply(record);
    if (below(500) != 0) continue;
    journal.reset();
    journal = Open();
    ASSERT_EQ(Encoded(journal->ledger()), Encoded(model)) << step;
  }
}

}  // namespace
}  // namespace torpor
