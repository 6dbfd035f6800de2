#include "daemon/keeper/journal.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace torpor {
namespace {

// Below it rewriting is not worth it.
constexpr Bytes kSmall = MiB(1);

Bytes NextCompaction(Bytes size) { return std::max(kSmall, size * 2); }

}  // namespace

Result<std::unique_ptr<Journal>> Journal::Open(const std::string& path) {
  TORPOR_ASSIGN_OR_RETURN(RecordFile::Contents contents, RecordFile::Open(path));
  std::unique_ptr<Journal> journal(new Journal());
  journal->file_ = std::move(contents.file);
  journal->torn_ = contents.torn;
  for (const std::string& bytes : contents.records) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<JournalRecord> records, DecodeRecords(bytes));
    journal->ledger_.Apply(records);
  }
  TORPOR_RETURN_IF_ERROR(journal->Write(journal->ledger_));
  return journal;
}

Status Journal::Record(const std::vector<JournalRecord>& records) {
  if (records.empty()) return Status::Ok();
  TORPOR_RETURN_IF_ERROR(file_->Append(EncodeRecords(records)));
  ledger_.Apply(records);
  // They are recorded, whether or not there is room to rewrite the file now.
  if (file_->size() >= compact_at_ && !Write(ledger_).ok()) compact_at_ = file_->size() + kSmall;
  return Status::Ok();
}

Status Journal::Replace(const std::vector<JournalRecord>& records) {
  Ledger ledger;
  for (const JournalRecord& record : records) ledger.Apply(record);
  TORPOR_RETURN_IF_ERROR(Write(ledger));
  ledger_ = std::move(ledger);
  return Status::Ok();
}

Status Journal::Write(const Ledger& ledger) {
  std::vector<std::string> records;
  records.reserve(ledger.size());
  for (const JournalRecord& record : ledger.Snapshot()) records.push_back(EncodeRecord(record));
  TORPOR_RETURN_IF_ERROR(file_->Rewrite(records));
  compact_at_ = NextCompaction(file_->size());
  return Status::Ok();
}

}  // namespace torpor
