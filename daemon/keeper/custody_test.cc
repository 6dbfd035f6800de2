#include "daemon/keeper/custody.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/descriptors.h"
#include "lib/base/status_matchers.h"
#include "lib/wire/codec.h"
#include "tests/harness/temp_dir.h"

namespace torpor::keeper {
namespace {

constexpr WorkerId kWorker(7);

class CustodyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_.Reset(ends[0]);
    keeper_.Reset(ends[1]);
    Restart();
  }

  // As a keeper that was killed and started again.
  void Restart() {
    custody_.reset();
    Result<std::unique_ptr<Journal>> journal = Journal::Open(directory_.path() + "/journal");
    ASSERT_THAT(journal, IsOk());
    custody_ = std::make_unique<Custody>(*std::move(journal));
  }

  // What the keeper answers; descriptors that come along go to `fds`.
  template <typename Answer, typename Question>
  Answer Ask(Type type, const Question& question, const std::vector<int>& to_send = {},
             std::vector<UniqueFd>* fds = nullptr) {
    EXPECT_THAT(net::SendFrame(daemon_.get(), static_cast<uint16_t>(type), 1,
                               wire::Encode(question), to_send),
                IsOk());
    Result<net::Frame> received = net::ReceiveFrame(keeper_.get());
    EXPECT_THAT(received, IsOk());
    const Status served = custody_->Serve(keeper_.get(), *std::move(received));
    Result<net::Frame> answered = net::ReceiveFrame(daemon_.get());
    EXPECT_THAT(answered, IsOk());
    EXPECT_EQ(answered->type, AnswerTo(static_cast<uint16_t>(type)));
    if (fds != nullptr) *fds = std::move(answered->fds);
    Result<Answer> answer = wire::Decode<Answer>(answered->payload);
    EXPECT_THAT(answer, IsOk());
    // Who is not let in is told so, and is not served.
    const bool refused = type == Type::kAttach && answer.ok() && !answer->status.ok();
    EXPECT_EQ(served.ok(), !refused) << served.ToString();
    return answer.ok() ? *std::move(answer) : Answer();
  }
  Status Note(const JournalRecord& record) {
    return Ask<Reply>(Type::kRecord, Record{{EncodeRecord(record)}}).status;
  }
  static UniqueFd Memory(char text) {
    UniqueFd fd(::memfd_create("extent", MFD_CLOEXEC));
    EXPECT_EQ(::write(fd.get(), &text, 1), 1);
    return fd;
  }
  static char TextOf(const UniqueFd& fd) {
    char text = 0;
    EXPECT_EQ(::pread(fd.get(), &text, 1, 0), 1);
    return text;
  }
  Status Hold(uint64_t id, char text) {
    const UniqueFd fd = Memory(text);
    return Ask<Reply>(Type::kHold, ExtentHeld{ExtentId(id), kWorker, "weights", MiB(2), MiB(2)},
                      {fd.get()})
        .status;
  }

  TempDir directory_;
  UniqueFd daemon_;
  UniqueFd keeper_;
  std::unique_ptr<Custody> custody_;
};

TEST_F(CustodyTest, WhatADaemonGaveTheNextOneGets) {
  EXPECT_TRUE(Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-1"}).records.empty());
  ASSERT_THAT(Note(SessionOpened{kWorker, "w", "s"}), IsOk());
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  ASSERT_THAT(Hold(2, 'b'), IsOk());
  const UniqueFd pool = Memory('p');
  const PoolHeld file{5, "memfd", GiB(1), MiB(64)};
  ASSERT_THAT(Ask<Reply>(Type::kHoldPool, file, {pool.get()}).status, IsOk());

  const AttachReply attached = Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-1"});
  ASSERT_THAT(attached.status, IsOk());
  EXPECT_EQ(attached.records.size(), 5u);  // with the highest ids and the pool
  EXPECT_FALSE(attached.more);
  std::vector<UniqueFd> fds;
  const FetchReply fetched =
      Ask<FetchReply>(Type::kFetch, Fetch{{ExtentId(2), ExtentId(9), ExtentId(1)}}, {}, &fds);
  EXPECT_EQ(fetched.extents, (std::vector<ExtentId>{ExtentId(2), ExtentId(1)}));
  ASSERT_EQ(fds.size(), 2u);
  EXPECT_EQ(TextOf(fds[0]), 'b');
  EXPECT_EQ(TextOf(fds[1]), 'a');
  const PoolReply kept = Ask<PoolReply>(Type::kPool, Reply(), {}, &fds);
  EXPECT_EQ(kept.pool.size, GiB(1));
  EXPECT_EQ(kept.pool.id, 5u);
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_EQ(TextOf(fds[0]), 'p');
}

TEST_F(CustodyTest, ADescriptorIsClosedBeforeTheAnswer) {
  ASSERT_THAT(Note(SessionOpened{kWorker, "w", "s"}), IsOk());
  const int64_t before = CountDescriptors().open;
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  EXPECT_EQ(CountDescriptors().open, before + 1);
  ASSERT_THAT(Ask<Reply>(Type::kDrop, ExtentDropped{ExtentId(1)}).status, IsOk());
  EXPECT_EQ(CountDescriptors().open, before);
  EXPECT_THAT(Ask<Reply>(Type::kDrop, ExtentDropped{ExtentId(1)}).status, IsOk());
  EXPECT_TRUE(custody_->ledger().extents().empty());
}

TEST_F(CustodyTest, TheEndOfASessionClosesItsDescriptors) {
  ASSERT_THAT(Note(SessionOpened{kWorker, "w", "s"}), IsOk());
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  ASSERT_THAT(Note(SessionClosed{kWorker}), IsOk());
  EXPECT_EQ(custody_->descriptors(), 0u);
  EXPECT_THAT(Hold(2, 'b'), HasReason("UNKNOWN_WORKER"));
  EXPECT_EQ(custody_->descriptors(), 0u);
}

TEST_F(CustodyTest, OfWhatIsLostOnlyTheRecordIsKept) {
  ASSERT_THAT(Note(SessionOpened{kWorker, "w", "s"}), IsOk());
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  ASSERT_THAT(Note(ExtentLost{ExtentId(1)}), IsOk());
  EXPECT_EQ(custody_->descriptors(), 0u);
  EXPECT_EQ(custody_->ledger().extents().count(ExtentId(1)), 1u);
}

TEST_F(CustodyTest, AKeeperThatWasStartedAgainKnowsWhatItHasLost) {
  ASSERT_THAT(Note(SessionOpened{kWorker, "w", "s"}), IsOk());
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-1"}).records.size(), 3u);
  EXPECT_TRUE(Ask<FetchReply>(Type::kFetch, Fetch{{ExtentId(1)}}).extents.empty());
  // The daemon that lives on gives it everything anew.
  const std::vector<std::string> records = {
      EncodeRecord(IdsSeen{WorkerId(8), SegmentId(5), ExtentId(4), 2}),
      EncodeRecord(SessionOpened{WorkerId(8), "v", "t"}),
      EncodeRecord(SegmentRecorded{SegmentId(1), WorkerId(8), "weights", Bytes(0), MiB(2),
                                   JournalState::kResident})};
  ASSERT_THAT(Ask<Reply>(Type::kReplace, Replace{records}).status, IsOk());
  EXPECT_EQ(Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-1"}).records, records);
}

TEST_F(CustodyTest, TakesRecordsTogetherOrNotAtAll) {
  const std::string opened = EncodeRecord(SessionOpened{kWorker, "w", "s"});
  EXPECT_THAT(Ask<Reply>(Type::kRecord, Record{{opened, "\x7f"}}).status, HasReason("BAD_RECORD"));
  EXPECT_TRUE(custody_->ledger().sessions().empty());
  const std::string held =
      EncodeRecord(ReservationMade{"r-3", "job", MiB(2), MiB(2), TimePoint(), false, false});
  ASSERT_THAT(Ask<Reply>(Type::kRecord, Record{{opened, held}}).status, IsOk());
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(custody_->ledger().sessions().size(), 1u);
  EXPECT_EQ(custody_->ledger().ids().reservation, 3u);
  ASSERT_THAT(Hold(1, 'a'), IsOk());
  EXPECT_EQ(custody_->descriptors(), 1u);
  ASSERT_THAT(
      Ask<Reply>(Type::kRecord, Record{{EncodeRecord(ExtentDropped{ExtentId(1)}), opened}}).status,
      IsOk());
  EXPECT_EQ(custody_->descriptors(), 0u);
}

// More than one message takes.
TEST_F(CustodyTest, ALargeJournalTravelsInPages) {
  std::vector<JournalRecord> all = {IdsSeen{kWorker, SegmentId(20), ExtentId(), 0},
                                    SessionOpened{kWorker, "w", "s"}};
  for (uint64_t id = 1; id <= 20; ++id) {
    all.emplace_back(SegmentRecorded{SegmentId(id), kWorker, "weights", Bytes(0), GiB(40),
                                     JournalState::kOffloaded});
  }
  for (uint64_t id = 1; id <= 20; ++id) {
    all.emplace_back(ImageRecorded{SegmentId(id), std::vector<RecordedBlock>(60000)});
  }
  std::vector<std::string> encoded;
  encoded.reserve(all.size());
  for (const JournalRecord& record : all) encoded.push_back(EncodeRecord(record));
  size_t pages = 0;
  for (size_t next = 0; next < all.size(); ++pages) {
    Replace replace;
    replace.records = TakePage(all, next);
    replace.more = next < all.size();
    ASSERT_THAT(Ask<Reply>(Type::kReplace, replace).status, IsOk());
    EXPECT_EQ(custody_->ledger().size(), replace.more ? 0u : all.size());
  }
  EXPECT_GT(pages, 1u);
  std::vector<std::string> got;
  AttachReply attached;
  do {
    attached = Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-1", got.size()});
    got.insert(got.end(), attached.records.begin(), attached.records.end());
    --pages;
  } while (attached.more);
  EXPECT_EQ(pages, 0u);
  EXPECT_EQ(got, encoded);
}

TEST_F(CustodyTest, RefusesWhatItShould) {
  EXPECT_THAT(Ask<AttachReply>(Type::kAttach, Attach{kProtocol + 1, "GPU-1"}).status,
              HasReason("KEEPER_PROTOCOL"));
  // Whatever else it says there.
  EXPECT_THAT(Ask<AttachReply>(Type::kAttach, ExtentDropped{ExtentId(kProtocol + 1)}).status,
              HasReason("KEEPER_PROTOCOL"));
  ASSERT_THAT(Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-1"}).status, IsOk());
  EXPECT_THAT(Ask<AttachReply>(Type::kAttach, Attach{kProtocol, "GPU-2"}).status,
              HasReason("KEEPER_DEVICE"));
  EXPECT_THAT(Ask<Reply>(Type::kRecord, Record{{"\x7f"}}).status, HasReason("BAD_RECORD"));
  EXPECT_THAT(Ask<Reply>(Type::kReplace, Replace{{"\x7f"}}).status, HasReason("BAD_RECORD"));
  for (const auto& [type, payload] :
       {std::pair<uint16_t, std::string>{1, "x"}, {7, "x"}, {9, ""}, {99, ""}}) {
    net::Frame question;
    question.type = type;
    question.payload = payload;
    EXPECT_THAT(custody_->Serve(keeper_.get(), std::move(question)), HasReason("BAD_FRAME"));
  }
}

}  // namespace
}  // namespace torpor::keeper
