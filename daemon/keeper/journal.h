#ifndef TORPOR_DAEMON_KEEPER_JOURNAL_H_
#define TORPOR_DAEMON_KEEPER_JOURNAL_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/keeper/ledger.h"
#include "daemon/keeper/record.h"
#include "daemon/keeper/record_file.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// A ledger on a file: what was recorded is there again at the next Open, whatever ended the process
// meanwhile. The file is rewritten, with what is still true, when most of it no longer is. Not
// thread-safe.
class Journal {
 public:
  // Rewrites the file. Where that fails (there is no room) the old one goes on, unless it is of an
  // older version. Errors as RecordFile::Open and DecodeRecord; and as RecordFile::Rewrite, with
  // version and needed_version.
  static Result<std::unique_ptr<Journal>> Open(const std::string& path);
  // One that says what `ledger` does, and is there as a whole or not at all; it replaces another
  // one. Errors as RecordFile::Create.
  static Result<std::unique_ptr<Journal>> Create(const std::string& path, const Ledger& ledger);

  // All of them or none, also for whoever opens the journal after a death in between. Errors as
  // RecordFile::Append: then nothing has changed.
  Status Record(const std::vector<JournalRecord>& records);
  // Forgets all, and begins anew with these. On failure nothing has changed.
  Status Replace(const std::vector<JournalRecord>& records);

  const Ledger& ledger() const { return ledger_; }
  Bytes size() const { return file_->size(); }
  // Of a last record that was not written to its end, found by Open.
  Bytes torn() const { return torn_; }
  // Why Open has not rewritten the file.
  const Status& not_rewritten() const { return not_rewritten_; }

 private:
  Journal() = default;
  // Makes the file say what `ledger` does.
  Status Write(const Ledger& ledger);

  std::unique_ptr<RecordFile> file_;
  Ledger ledger_;
  Bytes torn_{};
  Status not_rewritten_;
  Bytes compact_at_{};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_JOURNAL_H_
