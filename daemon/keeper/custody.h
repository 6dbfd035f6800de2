#ifndef TORPOR_DAEMON_KEEPER_CUSTODY_H_
#define TORPOR_DAEMON_KEEPER_CUSTODY_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/keeper/journal.h"
#include "daemon/keeper/protocol.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"

namespace torpor::keeper {

// What the keeper keeps, and how it answers the daemon. The journal says of an extent what the
// daemon said; the descriptors are those of this process' life. Not thread-safe.
class Custody {
 public:
  explicit Custody(std::unique_ptr<Journal> journal) : journal_(std::move(journal)) {}

  // Answers the first question of a connection, an Attach: with `may` if that is an error. What was
  // refused has been told so:
  //   FAILED_PRECONDITION KEEPER_PROTOCOL, KEEPER_DEVICE
  //   INVALID_ARGUMENT BAD_FRAME for what is no question, or the socket's: not told
  Status Admit(int socket, const net::Frame& question, const Status& may = Status::Ok());
  // Obeys one question and answers it on `socket`. An error ends the connection: as Admit's.
  Status Serve(int socket, net::Frame question);

  void NoteStart() { ++starts_; }
  Status NoteDaemon(const DaemonStarted& daemon) { return journal_->Record({daemon}); }
  const Ledger& ledger() const { return journal_->ledger(); }
  size_t descriptors() const { return extents_.size() + (pool_fd_.valid() ? 1 : 0); }

 private:
  Status Hold(net::Frame& question);
  Status Drop(const net::Frame& question);
  Status Note(const net::Frame& question);
  Status HoldPool(net::Frame& question);
  Status ReplaceAll(const net::Frame& question);
  Status AnswerFetch(int socket, const net::Frame& question);
  // Closes what the ledger does not know any more, or knows as lost.
  void CloseOthers();

  const std::unique_ptr<Journal> journal_;
  std::map<ExtentId, UniqueFd> extents_;
  PoolHeld pool_;
  UniqueFd pool_fd_;
  std::vector<JournalRecord> replacing_;  // pages of a Replace that is not yet complete
  uint32_t starts_ = 0;
  std::string device_;  // of the daemon that was attached first
};

}  // namespace torpor::keeper

#endif  // TORPOR_DAEMON_KEEPER_CUSTODY_H_
