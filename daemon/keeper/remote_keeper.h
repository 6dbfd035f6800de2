#ifndef TORPOR_DAEMON_KEEPER_REMOTE_KEEPER_H_
#define TORPOR_DAEMON_KEEPER_REMOTE_KEEPER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/keeper/channel.h"
#include "daemon/keeper/journal.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/ledger.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor {

// The keeper in its own process, and a copy of all that it was given. Without a keeper (killed, or
// silent for longer than the timeout) the daemon goes on: calls succeed on the copy alone, which is
// then unprotected, and the keeper that comes next is given all of it. Thread-safe.
class RemoteKeeper final : public Keeper {
 public:
  struct Protection {
    bool is_protected = true;
    std::string reason = {};  // why it is not
    TimePoint since{};        // the last change
  };
  struct Options {
    Duration answer_timeout = seconds(5);
    Duration retry = milliseconds(200);
    // A journal of the daemon's own (on the file system of the keeper's), for as long as there is
    // no keeper: without it, what a daemon does unprotected is unknown to the one after it, which
    // would believe the keeper's older journal. Empty: none.
    std::string own_journal = {};
    // After each change, by a thread of this class and without a lock.
    std::function<void(const Protection&)> on_change = nullptr;
  };

  // What the keeper has, and what the daemon before this one did without it.
  //   UNAVAILABLE KEEPER_NOT_RUNNING; DEADLINE_EXCEEDED KEEPER_SILENT
  //   FAILED_PRECONDITION KEEPER_PROTOCOL, KEEPER_DEVICE
  //   as Journal::Open, of `own_journal`
  static Result<std::unique_ptr<RemoteKeeper>> Attach(const std::string& socket,
                                                      const std::string& device_uuid,
                                                      const Options& options);
  // Whatever is kept stays with the keeper.
  ~RemoteKeeper() override;

  // As of Attach.
  const Ledger& recovered() const { return recovered_; }
  // Daemons that the keeper has started.
  uint32_t starts() const { return starts_; }
  // The descriptors that the keeper has of them. They count as held by this daemon, too, until they
  // are dropped: HoldExtent of one is not needed, and does nothing.
  //   UNAVAILABLE KEEPER_LOST: the keeper is gone, and they with it
  //   RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED
  Result<std::map<ExtentId, UniqueFd>> Fetch(const std::vector<ExtentId>& ids) EXCLUDES(mutex_);
  // Likewise.
  Result<std::optional<std::pair<PoolHeld, UniqueFd>>> FetchPool() EXCLUDES(mutex_);

  // Errors are refusals, of the keeper's or this process' own; nothing has changed then. Ends are
  // not refused: what has no room now is recorded before anything else is.
  //   RESOURCE_EXHAUSTED FILE_DESCRIPTORS_EXHAUSTED, JOURNAL_FULL
  //   INVALID_ARGUMENT FRAME_TOO_LARGE, RECORD_TOO_LARGE; NOT_FOUND UNKNOWN_WORKER
  // They wait for the answer, and for a handover under way, at most for the timeout each.
  Status HoldExtent(const ExtentHeld& extent, int fd) override EXCLUDES(mutex_);
  Status DropExtent(ExtentId id) override EXCLUDES(mutex_);
  Status Record(const std::vector<JournalRecord>& records) override EXCLUDES(mutex_);
  Status HoldPool(const PoolHeld& pool, int fd) override EXCLUDES(mutex_);

  Ledger ledger() const EXCLUDES(mutex_);
  // These do not wait for the keeper.
  Protection protection() const EXCLUDES(state_mutex_);
  bool is_protected() const { return protection().is_protected; }
  // Asks the keeper, and waits for its answer, at most for the timeout. Without one it is lost.
  bool Answers() EXCLUDES(mutex_);

 private:
  RemoteKeeper(const std::string& socket, const std::string& device, const Options& options,
               UniqueFd stop);

  // Introduces the daemon; the records are not asked for unless `ledger`.
  Result<keeper::AttachReply> Introduce(keeper::Channel& channel, Ledger* ledger) const;
  // Of a daemon before this one.
  Status TakeOwnJournal() EXCLUDES(mutex_);
  // Asks the keeper if there is one. An error is a refusal.
  template <typename Question>
  Status Tell(keeper::Type type, const Question& question, const std::vector<int>& fds = {})
      REQUIRES(mutex_);
  // What is owed, and then these: to whoever keeps a journal, and into the copy.
  Status Write(const std::vector<JournalRecord>& records) REQUIRES(mutex_);
  // True if all that was refused are ends, for lack of room: they are written later.
  bool Owe(const std::vector<JournalRecord>& ends, const Status& why) REQUIRES(mutex_);
  void Lose(const Status& why) REQUIRES(mutex_);
  void BeginOwnJournal() REQUIRES(mutex_);
  void EndOwnJournal() REQUIRES(mutex_);
  void SetProtection(bool is_protected, const std::string& reason) EXCLUDES(state_mutex_);

  // `told`: the change that on_change knows of.
  void Watch(TimePoint told) EXCLUDES(mutex_);
  Status Reconnect() EXCLUDES(mutex_);
  Status HandOver(keeper::Channel& channel) REQUIRES(mutex_);
  Status ReplaceAll(keeper::Channel& channel) const REQUIRES(mutex_);
  // False when it is time to stop.
  bool Pause(Duration duration) const;

  const std::string socket_;
  const std::string device_;
  const Options options_;
  const UniqueFd stop_;  // an eventfd
  Ledger recovered_;
  uint32_t starts_ = 0;

  mutable Mutex mutex_;  // for one question and what follows from its answer
  std::shared_ptr<keeper::Channel> channel_ GUARDED_BY(mutex_);  // null: unprotected
  Ledger ledger_ GUARDED_BY(mutex_);
  std::map<ExtentId, UniqueFd> extents_ GUARDED_BY(mutex_);
  // Ends that no journal had room for. They come before whatever is written next, so that a journal
  // never says that two have the same memory.
  std::vector<JournalRecord> owed_ GUARDED_BY(mutex_);
  UniqueFd pool_fd_ GUARDED_BY(mutex_);
  std::unique_ptr<Journal> own_journal_ GUARDED_BY(mutex_);

  mutable Mutex state_mutex_;
  Protection protection_ GUARDED_BY(state_mutex_);

  std::thread watch_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_REMOTE_KEEPER_H_
