#include "daemon/keeper/record_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/crc32c.h"
#include "lib/base/status_matchers.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

using Records = std::vector<std::string>;

class RecordFileTest : public ::testing::Test {
 protected:
  RecordFile::Contents Open() {
    Result<RecordFile::Contents> contents = RecordFile::Open(path_);
    EXPECT_THAT(contents, IsOk());
    return contents.ok() ? *std::move(contents) : RecordFile::Contents();
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void SetBytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  TempDir directory_;
  const std::string path_ = directory_.path() + "/journal";
};

TEST_F(RecordFileTest, WhatIsAppendedIsThereAgain) {
  const Records records = {"one", "", std::string(100000, 'x'), std::string("\0\n", 2)};
  {
    RecordFile::Contents contents = Open();
    EXPECT_TRUE(contents.records.empty());
    EXPECT_EQ(contents.torn, torpor::Bytes(0));
    for (const std::string& record : records) EXPECT_THAT(contents.file->Append(record), IsOk());
  }
  for (int again = 0; again < 2; ++again) {
    const RecordFile::Contents contents = Open();
    EXPECT_EQ(contents.records, records);
    EXPECT_EQ(contents.file->size(), torpor::Bytes(static_cast<int64_t>(Bytes().size())));
  }
}

TEST_F(RecordFileTest, ARecordThatWasNotWrittenToItsEndIsCutOff) {
  {
    const RecordFile::Contents contents = Open();
    ASSERT_THAT(contents.file->Append("first"), IsOk());
    ASSERT_THAT(contents.file->Append("second"), IsOk());
  }
  const std::string whole = Bytes();
  const size_t second = whole.size() - 12 - 6;
  for (size_t length = 0; length < whole.size(); ++length) {
    SetBytes(whole.substr(0, length));
    {
      const RecordFile::Contents contents = Open();
      const size_t complete = length < 16 ? 0 : length < second ? 0 : 1;
      EXPECT_EQ(contents.records.size(), complete) << length;
      const size_t end = length < 16 ? 0 : complete == 1 ? second : 16;
      EXPECT_EQ(contents.torn, torpor::Bytes(static_cast<int64_t>(length - end))) << length;
      ASSERT_THAT(contents.file->Append("third"), IsOk());
    }
    EXPECT_EQ(Open().records.back(), "third") << length;
  }
}

TEST_F(RecordFileTest, AChangedByteIsNoticed) {
  {
    const RecordFile::Contents contents = Open();
    for (const char* record : {"first", "second", "third"}) {
      ASSERT_THAT(contents.file->Append(record), IsOk());
    }
  }
  const std::string whole = Bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      SetBytes(changed);
      EXPECT_THAT(RecordFile::Open(path_).status(), HasReason("JOURNAL_DAMAGED")) << at;
      EXPECT_EQ(Bytes(), changed) << at;  // for whoever wants to look at it
    }
  }
}

TEST_F(RecordFileTest, OfANewerVersionIsRefused) {
  Open();
  std::string bytes = Bytes();
  bytes[8] = static_cast<char>(RecordFile::kVersion + 1);
  const uint32_t crc = Crc32c(0, bytes.data(), 12);
  for (int i = 0; i < 4; ++i) bytes[12 + i] = static_cast<char>(crc >> (8 * i));
  SetBytes(bytes);
  EXPECT_THAT(RecordFile::Open(path_).status(), HasReason("JOURNAL_TOO_NEW"));
  EXPECT_EQ(Bytes(), bytes);
}

TEST_F(RecordFileTest, WhatIsNoJournalIsLeftAlone) {
  for (const std::string& text : {std::string("hello"), std::string(100, 'x')}) {
    SetBytes(text);
    EXPECT_THAT(RecordFile::Open(path_).status(), HasReason("JOURNAL_DAMAGED"));
    EXPECT_EQ(Bytes(), text);
  }
}

TEST_F(RecordFileTest, HasOneOwner) {
  RecordFile::Contents contents = Open();
  EXPECT_THAT(RecordFile::Open(path_).status(), HasReason("JOURNAL_IN_USE"));
  ASSERT_THAT(contents.file->Rewrite({"a"}), IsOk());
  EXPECT_THAT(RecordFile::Open(path_).status(), HasReason("JOURNAL_IN_USE"));
  contents.file.reset();
  EXPECT_EQ(Open().records, Records{"a"});
}

// Each replaces the file that another one may just be about to lock.
TEST_F(RecordFileTest, NobodyHasAFileThatIsNoLongerThere) {
  constexpr size_t kRounds = 300;
  constexpr size_t kThreads = 3;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([this] {
      for (size_t done = 0; done < kRounds;) {
        Result<RecordFile::Contents> contents = RecordFile::Open(path_);
        if (contents.status().reason() == "JOURNAL_IN_USE") continue;
        ASSERT_THAT(contents, IsOk());
        contents->records.push_back("one more");
        ASSERT_THAT(contents->file->Rewrite(contents->records), IsOk());
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Open().records.size(), threads.size() * kRounds);
}

TEST_F(RecordFileTest, RewritingReplacesAll) {
  RecordFile::Contents contents = Open();
  for (int i = 0; i < 100; ++i) ASSERT_THAT(contents.file->Append("record"), IsOk());
  ASSERT_THAT(contents.file->Rewrite({"a", "b"}), IsOk());
  EXPECT_EQ(contents.file->size(), torpor::Bytes(16 + 2 * 13));
  ASSERT_THAT(contents.file->Append("c"), IsOk());
  EXPECT_THAT(contents.file->Rewrite({std::string(RecordFile::kMaxRecord + 1, 'x')}),
              HasReason("RECORD_TOO_LARGE"));
  EXPECT_THAT(contents.file->Append(std::string(RecordFile::kMaxRecord + 1, 'x')),
              HasReason("RECORD_TOO_LARGE"));
  contents.file.reset();
  EXPECT_EQ(Open().records, (Records{"a", "b", "c"}));
}

TEST_F(RecordFileTest, AFullFileSystemChangesNothing) {
  const RecordFile::Contents contents = Open();
  ASSERT_THAT(contents.file->Append("kept"), IsOk());
  const std::string before = Bytes();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{before.size() + 20, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status appended = contents.file->Append(std::string(1000, 'x'));
  const Status rewritten = contents.file->Rewrite({std::string(1000, 'x')});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_FALSE(appended.ok());
  EXPECT_FALSE(rewritten.ok());
  EXPECT_EQ(Bytes(), before);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  EXPECT_THAT(contents.file->Append("and on"), IsOk());
}

// Whoever is told that a record is there finds it, whenever the writer is killed.
TEST_F(RecordFileTest, AWriterMayBeKilledAtAnyInstant) {
  for (int round = 0; round < 20; ++round) {
    int told[2];
    ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
    const pid_t writer = ::fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      Result<RecordFile::Contents> contents = RecordFile::Open(path_);
      if (!contents.ok()) ::_exit(1);
      Records all = std::move(contents->records);
      for (uint32_t n = static_cast<uint32_t>(all.size());; ++n) {
        all.push_back(std::to_string(n) + std::string(n % 500, 'x'));
        const Status status =
            n % 50 == 49 ? contents->file->Rewrite(all) : contents->file->Append(all.back());
        if (!status.ok()) ::_exit(2);
        if (::write(told[1], &n, sizeof n) != sizeof n) ::_exit(3);
      }
    }
    ::close(told[1]);
    uint32_t last = 0;
    for (int i = 0; i < 30 + round * 7; ++i) {
      ASSERT_EQ(::read(told[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
    }
    ::kill(writer, SIGKILL);
    int status = 0;
    ::waitpid(writer, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
    for (uint32_t n = 0; ::read(told[0], &n, sizeof n) == sizeof n;) last = n;
    ::close(told[0]);
    const Records records = Open().records;
    ASSERT_GT(records.size(), last);
    for (size_t n = 0; n < records.size(); ++n) {
      ASSERT_EQ(records[n], std::to_string(n) + std::string(n % 500, 'x'));
    }
  }
}

}  // namespace
}  // namespace torpor
