#include "daemon/keeper/remote_keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/keeper/channel.h"
#include "daemon/keeper/journal.h"
#include "daemon/keeper/protocol.h"
#include "daemon/keeper/record_file.h"
#include "lib/base/status_matchers.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "tests/harness/temp_dir.h"

namespace torpor {
namespace {

constexpr WorkerId kWorker(7);
constexpr WorkerId kOther(8);

std::vector<std::string> Encoded(const Ledger& ledger) {
  std::vector<std::string> bytes;
  for (const JournalRecord& record : ledger.Snapshot()) bytes.push_back(EncodeRecord(record));
  return bytes;
}

ino_t InodeOf(const UniqueFd& fd) {
  struct stat about {};
  EXPECT_EQ(::fstat(fd.get(), &about), 0);
  return about.st_ino;
}

UniqueFd Memory() {
  UniqueFd fd(::memfd_create("extent", MFD_CLOEXEC));
  EXPECT_TRUE(fd.valid());
  return fd;
}

ExtentHeld Extent(uint64_t id, WorkerId worker = kWorker) {
  return {ExtentId(id), worker, "weights", MiB(2), MiB(2)};
}

SegmentRecorded Segment(uint64_t id, JournalState state) {
  return {SegmentId(id), kWorker, "weights", MiB(0), MiB(2), state};
}

// A keeper in its own process, whose daemon is one that does nothing.
class RemoteKeeperTest : public ::testing::Test {
 protected:
  void SetUp() override { StartKeeper(); }
  void TearDown() override {
    daemon_.reset();
    KillKeeper();
    Result<std::unique_ptr<Journal>> journal = Journal::Open(journal_);
    // What the keeper was about to start lets go of it with its exec.
    while (journal.status().reason() == "JOURNAL_IN_USE") {
      std::this_thread::sleep_for(milliseconds(1));
      journal = Journal::Open(journal_);
    }
    ASSERT_THAT(journal, IsOk());
    const auto& daemon = (*journal)->ledger().daemon();
    if (daemon.has_value()) ::kill(daemon->pid, SIGKILL);
  }

  void StartKeeper() {
    const std::string program = std::filesystem::absolute("daemon/keeper/torpor-keeper");
    const std::string socket = "--socket=" + socket_;
    const std::string journal = "--journal=" + journal_;
    keeper_ = ::fork();
    ASSERT_GE(keeper_, 0);
    if (keeper_ != 0) return;
    ::signal(SIGXFSZ, SIG_IGN);
    ::execl(program.c_str(), program.c_str(), socket.c_str(), journal.c_str(), "--", "/bin/sh",
            "-c", "exec sleep 1000", nullptr);
    ::_exit(127);
  }
  void KillKeeper() {
    if (keeper_ <= 0) return;
    ::kill(keeper_, SIGKILL);
    ::waitpid(keeper_, nullptr, 0);
    keeper_ = -1;
  }
  void LimitKeeper(__rlimit_resource what, rlim_t limit) const {
    rlimit now{};
    ASSERT_EQ(::prlimit(keeper_, what, nullptr, &now), 0);
    now.rlim_cur = limit;
    ASSERT_EQ(::prlimit(keeper_, what, &now, nullptr), 0);
  }

  RemoteKeeper::Options Options() {
    RemoteKeeper::Options options;
    options.answer_timeout = seconds(60);
    options.retry = milliseconds(5);
    options.on_change = [this](const RemoteKeeper::Protection& protection) {
      MutexLock lock(mutex_);
      told_.push_back(protection);
      changed_.NotifyAll();
    };
    return options;
  }
  // The daemon, or the one that follows it.
  void Attach(const RemoteKeeper::Options& options) {
    daemon_.reset();
    {
      MutexLock lock(mutex_);
      told_.clear();
    }
    for (;;) {
      auto attached = RemoteKeeper::Attach(socket_, "GPU-1", options);
      if (attached.ok()) {
        daemon_ = *std::move(attached);
        return;
      }
      ASSERT_THAT(attached.status(), HasReason("KEEPER_NOT_RUNNING"));  // not yet
      ASSERT_EQ(::waitpid(keeper_, nullptr, WNOHANG), 0) << "the keeper has ended";
    }
  }
  void Attach() { Attach(Options()); }
  void Await(bool is_protected) {
    MutexLock lock(mutex_);
    while (told_.empty() || told_.back().is_protected != is_protected) changed_.Wait(mutex_);
  }

  Status Hold(uint64_t id, WorkerId worker = kWorker) {
    const UniqueFd fd = Memory();
    Status held = daemon_->HoldExtent(Extent(id, worker), fd.get());
    if (held.ok()) inodes_[ExtentId(id)] = InodeOf(fd);
    return held;
  }
  Status Drop(uint64_t id) {
    inodes_.erase(ExtentId(id));
    return daemon_->DropExtent(ExtentId(id));
  }
  // The next daemon gets what this one has, by the keeper and by its file.
  void ExpectAllKept() {
    const std::vector<std::string> told = Encoded(daemon_->ledger());
    ASSERT_NO_FATAL_FAILURE(Attach());
    EXPECT_EQ(Encoded(daemon_->recovered()), told);
    std::vector<ExtentId> ids = {ExtentId(999999)};  // unknown
    for (const auto& [id, held] : daemon_->recovered().extents()) ids.push_back(id);
    const auto fetched = daemon_->Fetch(ids);
    ASSERT_THAT(fetched, IsOk());
    std::map<ExtentId, ino_t> inodes;
    for (const auto& [id, fd] : *fetched) inodes[id] = InodeOf(fd);
    EXPECT_EQ(inodes, inodes_);
    ASSERT_NO_FATAL_FAILURE(ExpectJournalOnDisk(told));
  }
  // What another process would read there now.
  void ExpectJournalOnDisk(const std::vector<std::string>& expected) {
    const std::string copy = directory_.path() + "/copy";
    std::filesystem::copy_file(journal_, copy, std::filesystem::copy_options::overwrite_existing);
    const auto journal = Journal::Open(copy);
    ASSERT_THAT(journal, IsOk());
    EXPECT_EQ(Encoded((*journal)->ledger()), expected);
  }

  TempDir directory_;
  const std::string socket_ = directory_.path() + "/made/by/it/keeper.sock";
  const std::string journal_ = directory_.path() + "/also/journal";
  const std::string own_journal_ = directory_.path() + "/own";
  pid_t keeper_ = -1;
  std::unique_ptr<RemoteKeeper> daemon_;
  std::map<ExtentId, ino_t> inodes_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<RemoteKeeper::Protection> told_ GUARDED_BY(mutex_);
};

TEST_F(RemoteKeeperTest, WhatADaemonGaveTheNextOneGets) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  EXPECT_EQ(daemon_->starts(), 1u);
  EXPECT_TRUE(daemon_->recovered().sessions().empty());
  EXPECT_TRUE(daemon_->is_protected());
  ASSERT_THAT(daemon_->FetchPool(), IsOk());
  EXPECT_FALSE(daemon_->FetchPool()->has_value());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}, SessionOpened{kOther, "o", "t"}}),
              IsOk());
  // More than one message takes descriptors.
  for (uint64_t id = 1; id <= net::kMaxFrameFds + 10; ++id) ASSERT_THAT(Hold(id), IsOk());
  ASSERT_THAT(daemon_->Record({Segment(1, JournalState::kOffloaded),
                               ImageRecorded{SegmentId(1), {{MiB(4), MiB(2)}}}}),
              IsOk());
  ASSERT_THAT(Drop(3), IsOk());
  ASSERT_THAT(Drop(3), IsOk());
  const UniqueFd pool = Memory();
  ASSERT_THAT(daemon_->HoldPool({1, "memfd", GiB(1), MiB(64)}, pool.get()), IsOk());

  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
  const auto kept = daemon_->FetchPool();
  ASSERT_THAT(kept, IsOk());
  ASSERT_TRUE(kept->has_value());
  EXPECT_EQ((*kept)->first.kind, "memfd");
  EXPECT_EQ((*kept)->first.slab, MiB(64));
  EXPECT_EQ(InodeOf((*kept)->second), InodeOf(pool));
  // What was fetched is held.
  const UniqueFd other = Memory();
  ASSERT_THAT(daemon_->HoldExtent(Extent(1), other.get()), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
}

TEST_F(RemoteKeeperTest, ADescriptorIsClosedBeforeTheAnswer) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}, SessionOpened{kOther, "o", "t"}}),
              IsOk());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  ASSERT_THAT(daemon_->HoldExtent(Extent(1), writing.get()), IsOk());
  ASSERT_THAT(daemon_->HoldExtent(Extent(2, kOther), writing.get()), IsOk());
  writing.Reset();
  char byte = 0;
  EXPECT_EQ(::read(reading.get(), &byte, 1), -1);
  ASSERT_THAT(daemon_->DropExtent(ExtentId(1)), IsOk());
  EXPECT_EQ(::read(reading.get(), &byte, 1), -1);
  ASSERT_THAT(daemon_->Record({SessionClosed{kOther}}), IsOk());
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
}

TEST_F(RemoteKeeperTest, WithoutAKeeperItGoesOnAndTheNextKeeperGetsAll) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}, SessionOpened{kOther, "o", "t"}}),
              IsOk());
  ASSERT_THAT(Hold(1), IsOk());
  ASSERT_THAT(Hold(2), IsOk());
  const UniqueFd pool = Memory();
  for (int round = 0; round < 3; ++round) {
    ASSERT_THAT(daemon_->HoldPool({1, "memfd", GiB(1), MiB(64)}, pool.get()), IsOk());
    KillKeeper();
    Await(false);  // without any call
    EXPECT_FALSE(daemon_->is_protected());
    EXPECT_FALSE(daemon_->protection().reason.empty());
    const uint64_t next = 10 * static_cast<uint64_t>(round + 1);
    EXPECT_THAT(Hold(next), IsOk());
    EXPECT_THAT(Hold(next + 1, kOther), IsOk());
    EXPECT_THAT(Drop(round == 0 ? 1 : next - 10), IsOk());
    EXPECT_THAT(daemon_->Record({Segment(next, JournalState::kOffloaded),
                                 ImageRecorded{SegmentId(next), {{MiB(4), MiB(2)}}}}),
                IsOk());
    EXPECT_THAT(Hold(5, WorkerId(99)), HasReason("UNKNOWN_WORKER"));
    ASSERT_NO_FATAL_FAILURE(StartKeeper());
    Await(true);
    EXPECT_TRUE(daemon_->is_protected());
    EXPECT_EQ(daemon_->protection().reason, "");
  }
  inodes_.erase(ExtentId(11));
  inodes_.erase(ExtentId(21));
  inodes_.erase(ExtentId(31));
  EXPECT_THAT(daemon_->Record({SessionClosed{kOther}}), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
  const auto kept = daemon_->FetchPool();
  ASSERT_THAT(kept, IsOk());
  ASSERT_TRUE(kept->has_value());
  EXPECT_EQ(InodeOf((*kept)->second), InodeOf(pool));
}

TEST_F(RemoteKeeperTest, NothingIsLostThatIsCalledMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  std::vector<std::map<ExtentId, ino_t>> kept(4);
  for (uint64_t t = 0; t < kept.size(); ++t) {
    threads.emplace_back([this, t, &kept, &stop] {
      for (uint64_t id = t * 100000 + 1; !stop; ++id) {
        const UniqueFd fd = Memory();
        ASSERT_THAT(daemon_->HoldExtent(Extent(id), fd.get()), IsOk());
        ASSERT_THAT(daemon_->Record({Segment(id, JournalState::kResident)}), IsOk());
        if (kept[t].size() < 50) {
          kept[t][ExtentId(id)] = InodeOf(fd);
          continue;
        }
        ASSERT_THAT(daemon_->DropExtent(ExtentId(id)), IsOk());
        ASSERT_THAT(daemon_->Record({SegmentFreed{SegmentId(id)}}), IsOk());
      }
    });
  }
  for (int round = 0; round < 10; ++round) {
    KillKeeper();
    Await(false);
    StartKeeper();
    Await(true);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (auto& some : kept) inodes_.merge(some);
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
}

TEST_F(RemoteKeeperTest, WhatTheKeeperRefusesChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  ASSERT_THAT(Hold(1), IsOk());
  const std::vector<std::string> before = Encoded(daemon_->ledger());
  ASSERT_NO_FATAL_FAILURE(LimitKeeper(RLIMIT_NOFILE, 6));
  EXPECT_THAT(Hold(2), HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  const UniqueFd pool = Memory();
  EXPECT_THAT(daemon_->HoldPool({1, "memfd", GiB(1), MiB(64)}, pool.get()),
              HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_TRUE(Encoded(daemon_->ledger()) == before);
  ASSERT_NO_FATAL_FAILURE(LimitKeeper(RLIMIT_NOFILE, 1000));
  ASSERT_NO_FATAL_FAILURE(LimitKeeper(RLIMIT_FSIZE, std::filesystem::file_size(journal_)));
  EXPECT_FALSE(daemon_->Record({Segment(1, JournalState::kResident)}).ok());
  EXPECT_FALSE(Hold(2).ok());
  EXPECT_TRUE(Encoded(daemon_->ledger()) == before);
  ASSERT_NO_FATAL_FAILURE(ExpectJournalOnDisk(before));
  ASSERT_NO_FATAL_FAILURE(LimitKeeper(RLIMIT_FSIZE, RLIM_INFINITY));
  EXPECT_THAT(daemon_->HoldExtent(Extent(3), -1), HasReason("ERRNO_EBADF"));
  EXPECT_THAT(Hold(3, kOther), HasReason("UNKNOWN_WORKER"));
  const ImageRecorded large{SegmentId(1), std::vector<RecordedBlock>(1 << 20)};
  EXPECT_THAT(daemon_->Record({large}), HasReason("FRAME_TOO_LARGE"));
  EXPECT_TRUE(daemon_->is_protected());
  EXPECT_TRUE(Encoded(daemon_->ledger()) == before);
  EXPECT_THAT(Hold(2), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
}

TEST_F(RemoteKeeperTest, WhatEndsWithoutRoomIsRecordedBeforeWhatFollows) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}, SessionOpened{kOther, "v", "t"}}),
              IsOk());
  ASSERT_THAT(daemon_->Record({Segment(1, JournalState::kResident)}), IsOk());
  ASSERT_THAT(Hold(1), IsOk());
  ASSERT_THAT(Hold(2), IsOk());
  const std::vector<std::string> before = Encoded(daemon_->ledger());
  ASSERT_NO_FATAL_FAILURE(LimitKeeper(RLIMIT_FSIZE, std::filesystem::file_size(journal_)));
  EXPECT_THAT(daemon_->Record({SegmentFreed{SegmentId(1)}}), IsOk());
  EXPECT_THAT(daemon_->Record({ExtentLost{ExtentId(1)}}), IsOk());
  EXPECT_THAT(Drop(1), IsOk());
  EXPECT_THAT(daemon_->Record({SessionClosed{kOther}}), IsOk());
  EXPECT_FALSE(Hold(3).ok());
  EXPECT_FALSE(
      daemon_->Record({SegmentFreed{SegmentId(1)}, Segment(2, JournalState::kResident)}).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectJournalOnDisk(before));
  EXPECT_TRUE(daemon_->ledger().segments().empty());
  EXPECT_EQ(daemon_->ledger().extents().size(), 1u);
  // The keeper has closed it all the same.
  EXPECT_EQ(daemon_->Fetch({ExtentId(1), ExtentId(2)})->size(), 1u);
  ASSERT_NO_FATAL_FAILURE(LimitKeeper(RLIMIT_FSIZE, RLIM_INFINITY));
  EXPECT_THAT(daemon_->Record({Segment(2, JournalState::kResident)}), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
}

TEST_F(RemoteKeeperTest, AKeeperThatIsStoppedIsDoneWithoutUntilItGoesOn) {
  RemoteKeeper::Options options = Options();
  options.answer_timeout = milliseconds(200);
  ASSERT_NO_FATAL_FAILURE(Attach(options));
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  ASSERT_THAT(Hold(1), IsOk());
  ::kill(keeper_, SIGSTOP);
  EXPECT_THAT(Hold(2), IsOk());
  Await(false);
  EXPECT_NE(daemon_->protection().reason.find("has not answered"), std::string::npos);
  EXPECT_THAT(daemon_->Record({Segment(1, JournalState::kResident)}), IsOk());
  EXPECT_THAT(Drop(1), IsOk());
  for (uint64_t id = 10; id < 100; ++id) EXPECT_THAT(Hold(id), IsOk());
  EXPECT_FALSE(daemon_->is_protected());
  ::kill(keeper_, SIGCONT);
  Await(true);
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
}

TEST_F(RemoteKeeperTest, AStoppedKeeperDoesNotHoldUpTheEnd) {
  RemoteKeeper::Options options = Options();
  options.answer_timeout = milliseconds(100);
  ASSERT_NO_FATAL_FAILURE(Attach(options));
  ::kill(keeper_, SIGSTOP);
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  Await(false);
  daemon_.reset();
}

TEST_F(RemoteKeeperTest, WhatIsDoneWithoutAKeeperTheNextDaemonKnows) {
  RemoteKeeper::Options options = Options();
  options.own_journal = own_journal_;
  ASSERT_NO_FATAL_FAILURE(Attach(options));
  ASSERT_THAT(
      daemon_->Record({SessionOpened{kWorker, "w", "s"}, Segment(1, JournalState::kOffloaded),
                       ImageRecorded{SegmentId(1), {{MiB(4), MiB(2)}}}}),
      IsOk());
  EXPECT_FALSE(std::filesystem::exists(own_journal_));
  for (const bool comes_back : {true, false}) {
    KillKeeper();
    Await(false);
    ASSERT_THAT(daemon_->Record({Segment(1, JournalState::kOffloaded),
                                 ImageRecorded{SegmentId(1), {{MiB(64), MiB(2)}}}}),
                IsOk());
    EXPECT_TRUE(std::filesystem::exists(own_journal_));
    const std::vector<std::string> last = Encoded(daemon_->ledger());
    if (!comes_back) daemon_.reset();
    ASSERT_NO_FATAL_FAILURE(StartKeeper());
    if (comes_back) {
      Await(true);
    } else {
      ASSERT_NO_FATAL_FAILURE(Attach(options));
      EXPECT_EQ(Encoded(daemon_->recovered()), last);
    }
    EXPECT_EQ(Encoded(daemon_->ledger()), last);
    EXPECT_FALSE(std::filesystem::exists(own_journal_));
    ASSERT_NO_FATAL_FAILURE(ExpectJournalOnDisk(last));
  }
}

// A daemon that is killed while it begins its own journal leaves the whole of it, or none.
TEST_F(RemoteKeeperTest, ItsOwnJournalIsThereAsAWhole) {
  RemoteKeeper::Options options = Options();
  options.own_journal = own_journal_;
  ASSERT_NO_FATAL_FAILURE(Attach(options));
  std::vector<JournalRecord> records = {SessionOpened{kWorker, "w", "s"}};
  for (uint64_t id = 1; id <= 20000; ++id) records.push_back(Segment(id, JournalState::kDiscarded));
  ASSERT_THAT(daemon_->Record(records), IsOk());
  for (int round = 0; round < 3; ++round) {
    std::string found;
    std::thread reader([&] {
      do {
        std::ifstream file(own_journal_, std::ios::binary);
        if (file.good()) found.assign(std::istreambuf_iterator<char>(file), {});
      } while (found.empty());
    });
    KillKeeper();
    reader.join();
    const auto parsed = RecordFile::Parse(own_journal_, found);
    ASSERT_THAT(parsed, IsOk());
    EXPECT_TRUE(parsed->records == Encoded(daemon_->ledger()));
    Await(false);
    ASSERT_NO_FATAL_FAILURE(StartKeeper());
    Await(true);
  }
}

TEST_F(RemoteKeeperTest, RefusesAForeignKeeper) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  daemon_.reset();
  EXPECT_THAT(RemoteKeeper::Attach(socket_, "GPU-2", Options()).status(),
              HasReason("KEEPER_DEVICE"));
  EXPECT_THAT(RemoteKeeper::Attach(directory_.path() + "/none", "GPU-1", Options()).status(),
              HasReason("KEEPER_NOT_RUNNING"));
}

// Of another release; both learn of it.
TEST_F(RemoteKeeperTest, FramesOfAnotherVersionAreToldAsSuch) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  net::FrameHeader header;
  header.version = net::kFrameVersion + 1;
  const auto daemon = net::ConnectUnix(socket_);
  ASSERT_THAT(daemon, IsOk());
  ASSERT_EQ(::send(daemon->get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  net::FrameHeader answer;
  ASSERT_EQ(::recv(daemon->get(), &answer, sizeof answer, 0), static_cast<ssize_t>(sizeof answer));
  EXPECT_EQ(answer.magic, net::kFrameMagic);
  EXPECT_EQ(answer.version, net::kFrameVersion);
  EXPECT_EQ(::recv(daemon->get(), &answer, sizeof answer, 0), 0);
  EXPECT_TRUE(daemon_->is_protected());

  const std::string path = directory_.path() + "/other.sock";
  const auto listener = net::ListenUnix(path, 0600);
  ASSERT_THAT(listener, IsOk());
  std::thread other([&] {
    const auto connection = net::AcceptUnix(listener->get());
    ASSERT_THAT(connection, IsOk());
    ASSERT_GT(::recv(connection->get(), &answer, sizeof answer, 0), 0);
    ASSERT_EQ(::send(connection->get(), &header, sizeof header, 0),
              static_cast<ssize_t>(sizeof header));
  });
  const Status refused = RemoteKeeper::Attach(path, "GPU-1", Options()).status();
  other.join();
  EXPECT_THAT(refused, HasReason("KEEPER_PROTOCOL"));
  EXPECT_EQ(refused.Number("frame_version"), net::kFrameVersion);
  EXPECT_EQ(refused.Number("keeper_frame_version"), net::kFrameVersion + 1);
}

TEST_F(RemoteKeeperTest, AProcessThatOnlyConnectsEndsNothing) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) {
    auto connection = net::ConnectUnix(socket_);
    ASSERT_THAT(connection, IsOk());
    silent.push_back(*std::move(connection));
  }
  const pid_t stray = ::fork();
  ASSERT_GE(stray, 0);
  if (stray == 0) {
    const auto channel = keeper::Channel::Connect(socket_, seconds(60), -1);
    const auto refused =
        (*channel)->Ask<keeper::AttachReply>(keeper::Type::kAttach, keeper::Attach());
    std::fprintf(stderr, "%s\n", refused.status().ToString().c_str());
    ::_exit(refused.status().reason() == "KEEPER_IN_USE" ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(stray, &status, 0), stray);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  EXPECT_THAT(Hold(1), IsOk());
  {
    MutexLock lock(mutex_);
    EXPECT_TRUE(told_.empty());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAllKept());
}

// The keeper sees no number of such a daemon.
TEST_F(RemoteKeeperTest, ADaemonOutsideTheKeepersPidNamespaceIsServed) {
  KillKeeper();
  const std::string log = directory_.path() + "/log";
  const std::string program = std::filesystem::absolute("daemon/keeper/torpor-keeper");
  const pid_t outside = ::fork();
  ASSERT_GE(outside, 0);
  if (outside == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool alone = ::unshare(CLONE_NEWPID | CLONE_NEWNS) == 0 ||
                       ::unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) == 0;
    const pid_t inside = alone ? ::fork() : -1;
    if (inside > 0) {
      int status = 0;
      ::waitpid(inside, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (inside < 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", 0, nullptr) != 0 ||
        std::freopen(log.c_str(), "w", stderr) == nullptr) {
      ::_exit(3);
    }
    // Of what this one has started nothing attaches, or lives.
    ::execl(program.c_str(), program.c_str(), ("--socket=" + socket_).c_str(),
            ("--journal=" + journal_ + "2").c_str(), "--", "/bin/false", nullptr);
    ::_exit(127);
  }
  keeper_ = outside;
  for (;;) {
    if (::access(log.c_str(), F_OK) == 0) break;
    int status = 0;
    if (::waitpid(keeper_, &status, WNOHANG) == keeper_) {
      keeper_ = -1;
      ASSERT_EQ(WEXITSTATUS(status), 3);
      GTEST_SKIP() << "no namespace may be made here";
    }
  }
  const auto count = [&](const std::string& text) {
    std::ifstream file(log);
    const std::string all(std::istreambuf_iterator<char>(file), {});
    size_t found = 0;
    for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
    return found;
  };
  ASSERT_NO_FATAL_FAILURE(Attach());
  while (count("cannot be watched") == 0) std::this_thread::yield();
  const size_t starts = count(" started\n");
  EXPECT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  EXPECT_THAT(Hold(1), IsOk());
  EXPECT_THAT(RemoteKeeper::Attach(socket_, "GPU-1", Options()).status(),
              HasReason("KEEPER_IN_USE"));
  EXPECT_TRUE(daemon_->is_protected());
  EXPECT_EQ(count(" started\n"), starts);
  daemon_.reset();
  while (count(" started\n") == starts) std::this_thread::yield();
}

// The keeper dies while the daemon recovers.
TEST_F(RemoteKeeperTest, WhatCannotBeFetchedIsToldAsLost) {
  ASSERT_NO_FATAL_FAILURE(Attach());
  ASSERT_THAT(daemon_->Record({SessionOpened{kWorker, "w", "s"}}), IsOk());
  ASSERT_THAT(Hold(1), IsOk());
  ASSERT_NO_FATAL_FAILURE(Attach());
  KillKeeper();
  EXPECT_THAT(daemon_->Fetch({ExtentId(1)}).status(), HasReason("KEEPER_LOST"));
  EXPECT_THAT(daemon_->FetchPool().status(), HasReason("KEEPER_LOST"));
  EXPECT_THAT(daemon_->Fetch({}), IsOk());
  Await(false);
}

}  // namespace
}  // namespace torpor
