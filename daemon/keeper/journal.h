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
  // Errors as RecordFile::Open and DecodeRecord.
  static Result<std::unique_ptr<Journal>> Open(const std::string& path);

  // All of them or none, also for whoever opens the journal after a death in between. Errors as
  // RecordFile::Append: then nothing has changed.
  Status Record(const std::vector<JournalRecord>& records);
  // Forgets all, and begins anew with these. On failure nothing has changed.
  Status Replace(const std::vector<JournalRecord>& records);

  const Ledger& ledger() const { return ledger_; }
  Bytes size() const { return file_->size(); }
  // Of a last record that was not written to its end, found by Open.
  Bytes torn() const { return torn_; }

 private:
  Journal() = default;
  // Makes the file say what `ledger` does.
  Status Write(const Ledger& ledger);

  std::unique_ptr<RecordFile> file_;
  Ledger ledger_;
  Bytes torn_{};
  Bytes compact_at_{};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_JOURNAL_H_
