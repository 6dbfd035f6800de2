#include "daemon/keeper/journal.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/crc32c.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/temp_dir.h"

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
          SessionClosed{WorkerId(7)},
          DaemonStarted{4711, 12345},
          PoolHeld{11, "file, huge pages", GiB(1), MiB(64), "/dev/shm/torpor-GPU-1-abcdef.pool"},
          SessionProcess{WorkerId(7), 4712, 12346, 4026531836},
          ExtentLost{ExtentId(3)},
          ReservationSurrendered{"r-1", MiB(512)},
          ReservationParts{"r-1", {{"weights", MiB(768)}, {"kv_cache", MiB(256)}}},
          SessionUser{WorkerId(7), 1000, 100},
          ReservationOwner{"r-1", "uid:1000"},
          IdsSeen{WorkerId(70), SegmentId(10), ExtentId(30), 100}};
}

class JournalTest : public ::testing::Test {
 protected:
  std::unique_ptr<Journal> Open() {
    Result<std::unique_ptr<Journal>> journal = Journal::Open(directory_.path() + "/journal");
    EXPECT_THAT(journal, IsOk());
    return journal.ok() ? *std::move(journal) : nullptr;
  }

  TempDir directory_;
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

// The bytes of version 1, from 13 on of version 2, from 18 on of version 3: a journal that has them
// is read by whatever comes later. A record that is new gets another number.
TEST(RecordTest, TheBytesOfARecordStayAsTheyAre) {
  const std::vector<std::string> written = {
      "00070000000000000006000000656e67696e650600000073656372657403000000722d31",
      "010700000000000000",
      ("02010000000000000007000000000000000700000077656967687473000020000000000000004000"
       "0000000001"),
      "030100000000000000",
      ("04030000000000000007000000000000000700000077656967687473000020000000000000004000"
       "00000000"),
      "050300000000000000",
      "0601000000000000000100000000000004000000000000200000000000",
      "070100000000000000",
      ("0803000000722d31040000006e6578740000004000000000000000800000000000f2052a01000000"
       "0100"),
      "0903000000722d31001a711802000000",
      "0a03000000722d31",
      "0b671200003930000000000000",
      "0c46000000000000000a000000000000001e000000000000006400000000000000",
      ("0d0b00000000000000050000006d656d66640000004000000000000000040000000007000000"
       "2f702e706f6f6c"),
      "0e0700000000000000681200003a30000000000000fcffffef00000000",
      "0f0300000000000000",
      "1003000000722d310000002000000000",
      ("1103000000722d310100000004000000"
       "6e6578740000004000000000"),
      "120700000000000000e803000064000000",
      "1303000000722d31080000007569643a31303030"};
  const std::vector<JournalRecord> said = {
      SessionOpened{WorkerId(7), "engine", "secret", "r-1"},
      SessionClosed{WorkerId(7)},
      SegmentRecorded{SegmentId(1), WorkerId(7), "weights", MiB(2), MiB(4),
                      JournalState::kOffloaded},
      SegmentFreed{SegmentId(1)},
      ExtentHeld{ExtentId(3), WorkerId(7), "weights", MiB(2), MiB(4)},
      ExtentDropped{ExtentId(3)},
      ImageRecorded{SegmentId(1), {{MiB(64), MiB(2)}}},
      ImageDropped{SegmentId(1)},
      ReservationMade{"r-1", "next", GiB(1), GiB(2), TimePoint(seconds(5)), true, false},
      ReservationRenewed{"r-1", TimePoint(seconds(9))},
      ReservationReleased{"r-1"},
      DaemonStarted{4711, 12345},
      IdsSeen{WorkerId(70), SegmentId(10), ExtentId(30), 100},
      PoolHeld{11, "memfd", GiB(1), MiB(64), "/p.pool"},
      SessionProcess{WorkerId(7), 4712, 12346, 4026531836},
      ExtentLost{ExtentId(3)},
      ReservationSurrendered{"r-1", MiB(512)},
      ReservationParts{"r-1", {{"next", GiB(1)}}},
      SessionUser{WorkerId(7), 1000, 100},
      ReservationOwner{"r-1", "uid:1000"}};
  ASSERT_EQ(said.size(), std::variant_size_v<JournalRecord>);
  ASSERT_EQ(written.size(), said.size());
  for (size_t number = 0; number < said.size(); ++number) {
    EXPECT_EQ(said[number].index(), number);
    std::string hex;
    for (const char byte : EncodeRecord(said[number])) {
      constexpr char kDigits[] = "0123456789abcdef";
      hex += kDigits[static_cast<unsigned char>(byte) >> 4];
      hex += kDigits[byte & 15];
    }
    EXPECT_EQ(hex, written[number]) << number;
  }
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
  EXPECT_EQ(ledger.size(), 7u);  // one of them says the highest ids
  EXPECT_EQ(ledger.reservations().at("r-1").expires, TimePoint(seconds(9)));
  EXPECT_EQ(ledger.images().at(SegmentId(1)).blocks.size(), 2u);
  for (size_t i = 7; i < records.size(); ++i) ledger.Apply(records[i]);
  EXPECT_EQ(ledger.size(), 3u);
  EXPECT_EQ(ledger.daemon()->pid, 4711);
  EXPECT_EQ(ledger.pool()->id, 11u);
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
  EXPECT_EQ(ledger.size(), 5u);
  EXPECT_EQ(ledger.images().count(SegmentId(8)), 1u);
  ledger.Apply(
      SegmentRecorded{SegmentId(9), WorkerId(7), "a", Bytes(0), MiB(2), JournalState::kResident});
  ledger.Apply(ExtentHeld{ExtentId(9), WorkerId(7), "a", Bytes(0), MiB(2)});
  ledger.Apply(ImageRecorded{SegmentId(9), {}});
  EXPECT_EQ(ledger.size(), 5u);
}

TEST(LedgerTest, AnotherPoolHasNoneOfTheImages) {
  Ledger ledger;
  ledger.Apply(SessionOpened{WorkerId(7), "w", "s"});
  PoolHeld pool{1, "memfd, huge pages", GiB(1), MiB(64)};
  ledger.Apply(pool);
  ledger.Apply(
      SegmentRecorded{SegmentId(1), WorkerId(7), "a", Bytes(0), MiB(2), JournalState::kOffloaded});
  ledger.Apply(ImageRecorded{SegmentId(1), {{Bytes(0), MiB(2)}}});
  ledger.Apply(pool);  // again, as to another keeper
  EXPECT_EQ(ledger.images().size(), 1u);
  Ledger again;
  for (const JournalRecord& record : ledger.Snapshot()) again.Apply(record);
  EXPECT_EQ(Encoded(again), Encoded(ledger));
  pool.id = 2;
  ledger.Apply(pool);
  EXPECT_TRUE(ledger.images().empty());
  EXPECT_EQ(ledger.segments().size(), 1u);
  EXPECT_EQ(ledger.pool()->id, 2u);
}

TEST(LedgerTest, WhatIsSaidOfOthersEndsWithThem) {
  Ledger ledger;
  const std::vector<JournalRecord> said = {
      SessionProcess{WorkerId(7), 4712, 12346, 1}, ExtentLost{ExtentId(3)},
      ReservationSurrendered{"r-1", MiB(1)},       ReservationParts{"r-1", {{"a", MiB(2)}}},
      SessionUser{WorkerId(7), 1000, 100},         ReservationOwner{"r-1", "uid:1000"}};
  ledger.Apply(said);
  EXPECT_EQ(ledger.size(), 0u) << "of nothing that is there";
  for (const JournalRecord& end :
       {JournalRecord(SessionClosed{WorkerId(7)}), JournalRecord(ExtentDropped{ExtentId(3)})}) {
    ledger.Apply(SessionOpened{WorkerId(7), "w", "s"});
    ledger.Apply(ExtentHeld{ExtentId(3), WorkerId(7), "weights", Bytes(0), MiB(2)});
    ledger.Apply(ReservationMade{"r-1", "next", MiB(2), Bytes(0), TimePoint(seconds(5))});
    ledger.Apply(said);
    EXPECT_EQ(ledger.lost().count(ExtentId(3)), 1u);
    ASSERT_NE(ledger.FindProcess(WorkerId(7)), nullptr);
    EXPECT_EQ(ledger.FindProcess(WorkerId(7))->pid, 4712);
    EXPECT_EQ(ledger.Surrendered("r-1"), MiB(1));
    ASSERT_EQ(ledger.Parts("r-1").size(), 1u);
    ASSERT_NE(ledger.FindUser(WorkerId(7)), nullptr);
    EXPECT_EQ(ledger.FindUser(WorkerId(7))->uid, 1000u);
    EXPECT_EQ(ledger.OwnerOf("r-1"), "uid:1000");
    EXPECT_EQ(ledger.size(), 10u);
    ledger.Apply(end);
    EXPECT_TRUE(ledger.lost().empty());
    ledger.Apply(ReservationReleased{"r-1"});
    EXPECT_EQ(ledger.Surrendered("r-1"), Bytes(0));
    EXPECT_TRUE(ledger.Parts("r-1").empty());
  }
  ledger.Apply(SessionClosed{WorkerId(7)});
  EXPECT_EQ(ledger.FindProcess(WorkerId(7)), nullptr);
}

TEST(LedgerTest, KnowsTheHighestIdsOfWhateverHasBeen) {
  Ledger ledger;
  EXPECT_EQ(ledger.size(), 0u);
  EXPECT_TRUE(ledger.Snapshot().empty());
  const std::vector<JournalRecord> records = OneOfEach();
  for (size_t i = 0; i + 1 < records.size(); ++i) ledger.Apply(records[i]);
  for (const char* id : {"r-", "r-9x", "x-9", "r--9", ""}) {
    ReservationMade other;
    other.id = id;
    ledger.Apply(other);
  }
  EXPECT_EQ(EncodeRecord(ledger.ids()),
            EncodeRecord(IdsSeen{WorkerId(7), SegmentId(2), ExtentId(3), 1}));
  // Also of what is not there any more.
  ledger.Apply(SegmentRecorded{SegmentId(4), WorkerId(7), "a"});
  ledger.Apply(IdsSeen{WorkerId(6), SegmentId(3), ExtentId(9), 8});
  EXPECT_EQ(EncodeRecord(ledger.ids()),
            EncodeRecord(IdsSeen{WorkerId(7), SegmentId(4), ExtentId(9), 8}));
  Ledger again;
  again.Apply(ledger.Snapshot());
  EXPECT_EQ(Encoded(again), Encoded(ledger));
  EXPECT_EQ(again.ids().reservation, 8u);
}

TEST(LedgerTest, OnlyWhatIsOffloadedHasAnImage) {
  SegmentRecorded segment{SegmentId(1), WorkerId(7), "a", Bytes(0), MiB(2)};
  const ImageRecorded image{SegmentId(1), {{}}};
  for (const JournalState end : {JournalState::kResident, JournalState::kDiscarded}) {
    for (const bool image_first : {false, true}) {
      for (const bool was_there : {false, true}) {
        Ledger ledger;
        ledger.Apply(SessionOpened{WorkerId(7), "w", "s"});
        segment.state = JournalState::kResident;
        if (was_there) ledger.Apply(segment);
        segment.state = JournalState::kOffloaded;
        ledger.Apply(image_first ? std::vector<JournalRecord>{image, segment}
                                 : std::vector<JournalRecord>{segment, image});
        EXPECT_EQ(ledger.images().count(SegmentId(1)), 1u);
        segment.state = end;
        ledger.Apply(segment);
        EXPECT_TRUE(ledger.images().empty());
        ledger.Apply(SegmentFreed{SegmentId(1)});
        ledger.Apply(std::vector<JournalRecord>{image, segment});
        EXPECT_TRUE(ledger.images().empty());
      }
    }
  }
}

TEST(RecordTest, SeveralReadAsTheyWereWritten) {
  const std::vector<JournalRecord> records = OneOfEach();
  for (size_t count = 0; count <= records.size(); ++count) {
    const std::string bytes =
        EncodeRecords({records.begin(), records.begin() + static_cast<std::ptrdiff_t>(count)});
    const Result<std::vector<JournalRecord>> again = DecodeRecords(bytes);
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->size(), count);
    EXPECT_EQ(EncodeRecords(*again), bytes);
    if (count == 1) {
      EXPECT_EQ(bytes, EncodeRecord(records[0]));
    }
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_THAT(DecodeRecords(bytes.substr(0, length)), HasReason("BAD_RECORD"));
    }
    EXPECT_THAT(DecodeRecords(bytes + "x"), HasReason("BAD_RECORD"));
  }
}

TEST_F(JournalTest, SeveralRecordsAreThereTogetherOrNotAtAll) {
  const std::vector<JournalRecord> records = OneOfEach();
  const std::vector<JournalRecord> first(records.begin(), records.begin() + 3);
  const std::vector<JournalRecord> second(records.begin() + 3, records.begin() + 7);
  std::vector<std::string> before;
  std::vector<std::string> after;
  uintmax_t size = 0;
  const std::filesystem::path path = directory_.path() + "/journal";
  {
    const std::unique_ptr<Journal> journal = Open();
    ASSERT_THAT(journal->Record({}), IsOk());
    ASSERT_THAT(journal->Record(first), IsOk());
    before = Encoded(journal->ledger());
    size = std::filesystem::file_size(path);
    ASSERT_THAT(journal->Record(second), IsOk());
    after = Encoded(journal->ledger());
  }
  EXPECT_EQ(Encoded(Open()->ledger()), after);
  const std::filesystem::path copy = directory_.path() + "/copy";
  {
    const std::unique_ptr<Journal> journal = Open();
    ASSERT_THAT(journal->Replace({}), IsOk());
    ASSERT_THAT(journal->Record(first), IsOk());
    ASSERT_THAT(journal->Record(second), IsOk());
    std::filesystem::copy_file(path, copy);
  }
  for (uintmax_t length = size; length < std::filesystem::file_size(copy); ++length) {
    std::filesystem::copy_file(copy, path, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path, length);
    const std::unique_ptr<Journal> journal = Open();
    EXPECT_EQ(Encoded(journal->ledger()), before) << length;
    EXPECT_EQ(journal->torn(), Bytes(static_cast<int64_t>(length - size)));
  }
}

TEST_F(JournalTest, IsAsItWasAfterEachRecord) {
  Ledger model;
  for (const JournalRecord& record : OneOfEach()) {
    ASSERT_THAT(Open()->Record({record}), IsOk());
    model.Apply(record);
    EXPECT_EQ(Encoded(Open()->ledger()), Encoded(model));
  }
}

TEST_F(JournalTest, StaysSmallHoweverMuchHappens) {
  std::unique_ptr<Journal> journal = Open();
  ASSERT_THAT(journal->Record({SessionOpened{WorkerId(1), "w", "s"}}), IsOk());
  ImageRecorded image{SegmentId(0), std::vector<RecordedBlock>(200)};
  for (uint64_t i = 0; i < 3000; ++i) {
    const SegmentId id(i % 20);
    image.segment = id;
    ASSERT_THAT(journal->Record({SegmentRecorded{id, WorkerId(1), "weights", Bytes(0), MiB(400),
                                                 JournalState::kOffloaded}}),
                IsOk());
    ASSERT_THAT(journal->Record({image}), IsOk());
    ASSERT_LT(journal->size(), MiB(2));
    if (i % 3 != 0) continue;
    ASSERT_THAT(journal->Record({ImageDropped{id}}), IsOk());
  }
  const std::vector<std::string> last = Encoded(journal->ledger());
  journal.reset();
  EXPECT_EQ(Encoded(Open()->ledger()), last);
}

// In a process of its own: what is limited or mounted there is so for no other.
void InAnotherProcess(const std::function<void()>& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(JournalTest, GoesOnWithTheOldFileWhereThereIsNoRoomToRewriteIt) {
  const std::string path = directory_.path() + "/journal";
  ASSERT_THAT(Open()->Record(OneOfEach()), IsOk());
  const std::vector<std::string> before = Encoded(Open()->ledger());
  InAnotherProcess([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlim_t all = limit.rlim_cur;
    limit.rlim_cur = 20;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::unique_ptr<Journal> journal = Open();
    EXPECT_FALSE(journal->not_rewritten().ok());
    EXPECT_EQ(Encoded(journal->ledger()), before);
    EXPECT_FALSE(journal->Record({SessionClosed{WorkerId(7)}}).ok());
    limit.rlim_cur = all;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THAT(journal->Record({SessionOpened{WorkerId(8), "later", "secret"}}), IsOk());
  });
  const std::unique_ptr<Journal> journal = Open();
  EXPECT_THAT(journal->not_rewritten(), IsOk());
  EXPECT_EQ(journal->ledger().sessions().count(WorkerId(8)), 1u);
}

TEST_F(JournalTest, AnOlderFileIsLeftAloneWhereThereIsNoRoomForOneOfThisVersion) {
  const std::string path = directory_.path() + "/journal";
  ASSERT_THAT(Open()->Record(OneOfEach()), IsOk());
  const auto read = [&] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::string older = read();
  older[8] = static_cast<char>(RecordFile::kVersion - 1);
  const uint32_t crc = Crc32c(0, older.data(), 12);
  for (size_t i = 0; i < 4; ++i) older[12 + i] = static_cast<char>(crc >> (8 * i));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << older;
  InAnotherProcess([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const Status opened = Journal::Open(path).status();
    EXPECT_FALSE(opened.ok());
    EXPECT_EQ(opened.details().at("version"), std::to_string(RecordFile::kVersion - 1));
    EXPECT_EQ(opened.details().at("needed_version"), std::to_string(RecordFile::kVersion));
  });
  EXPECT_EQ(read(), older);
  EXPECT_THAT(Open()->not_rewritten(), IsOk());
  EXPECT_EQ(read()[8], static_cast<char>(RecordFile::kVersion));
}

// False where this process may not.
bool MountSmallTmpfs(const std::string& at) {
  const uid_t uid = ::geteuid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", at.c_str(), "tmpfs", 0, "size=1m") == 0;
}

TEST_F(JournalTest, OpensOnATmpfsThatIsFull) {
  InAnotherProcess([&] {
    if (!MountSmallTmpfs(directory_.path())) {
      std::puts("no file system may be mounted here");
      return;
    }
    std::vector<std::string> before;
    {
      const std::unique_ptr<Journal> journal = Open();
      ASSERT_THAT(journal->Record({SessionOpened{WorkerId(7), "engine", "secret"}}), IsOk());
      for (uint64_t id = 1; id <= 5000; ++id) {
        ASSERT_THAT(journal->Record({SegmentRecorded{SegmentId(id), WorkerId(7), "weights", MiB(2),
                                                     MiB(4), JournalState::kDiscarded}}),
                    IsOk());
      }
      before = Encoded(journal->ledger());
    }
    {
      std::ofstream filler(directory_.path() + "/filler");
      while (filler << 'x' << std::flush) continue;
    }
    {
      const std::unique_ptr<Journal> journal = Open();
      ASSERT_TRUE(journal != nullptr);
      EXPECT_THAT(journal->not_rewritten(), HasReason("JOURNAL_FULL"));
      EXPECT_EQ(Encoded(journal->ledger()), before);
      EXPECT_FALSE(std::filesystem::exists(directory_.path() + "/journal.new"));
    }
    std::filesystem::remove(directory_.path() + "/filler");
    EXPECT_THAT(Open()->not_rewritten(), IsOk());
    EXPECT_EQ(Encoded(Open()->ledger()), before);
  });
}

// Any records in any order, and a reopening now and then.
TEST_F(JournalTest, Property) {
  std::mt19937_64 random(6);
  const auto below = [&](uint64_t n) { return random() % n; };
  Ledger model;
  std::unique_ptr<Journal> journal = Open();
  const std::vector<JournalRecord> kinds = OneOfEach();
  std::vector<JournalRecord> together;
  for (int step = 0; step < 20000; ++step) {
    JournalRecord record = kinds[below(kinds.size())];
    std::visit(
        [&](auto& one) {
          using T = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<T, SessionOpened> || std::is_same_v<T, SessionClosed> ||
                        std::is_same_v<T, SessionProcess> || std::is_same_v<T, SessionUser>) {
            one.worker = WorkerId(below(4));
          } else if constexpr (std::is_same_v<T, SegmentRecorded>) {
            one.segment = SegmentId(below(30));
            one.worker = WorkerId(below(4));
          } else if constexpr (std::is_same_v<T, ExtentHeld>) {
            one.extent = ExtentId(below(30));
            one.worker = WorkerId(below(4));
          } else if constexpr (std::is_same_v<T, ExtentDropped> || std::is_same_v<T, ExtentLost>) {
            one.extent = ExtentId(below(30));
          } else if constexpr (std::is_same_v<T, PoolHeld>) {
            one.id = 1 + below(2);
          } else if constexpr (std::is_same_v<T, SegmentFreed> ||
                               std::is_same_v<T, ImageRecorded> ||
                               std::is_same_v<T, ImageDropped>) {
            one.segment = SegmentId(below(30));
          } else if constexpr (std::is_same_v<T, IdsSeen>) {
            one.segment = SegmentId(below(60));
          } else if constexpr (std::is_same_v<T, DaemonStarted>) {
            one.pid = static_cast<int32_t>(below(100));
          } else {
            one.id = "r-" + std::to_string(below(5));
          }
        },
        record);
    together.push_back(std::move(record));
    if (below(2) == 0) continue;
    ASSERT_THAT(journal->Record(together), IsOk());
    model.Apply(together);
    together.clear();
    if (below(250) != 0) continue;
    journal.reset();
    journal = Open();
    ASSERT_EQ(Encoded(journal->ledger()), Encoded(model)) << step;
  }
}

}  // namespace
}  // namespace torpor
