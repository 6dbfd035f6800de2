#include "daemon/keeper/journal.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace torpor {
namespace {

// Below it rewriting is not worth it.
constexpr Bytes kSmall = MiB(1);

Bytes NextCompaction(Bytes size) { return std::max(kSmall, size * 2); }

std::vector<std::string> Encoded(const Ledger& ledger) {
  std::vector<std::string> records;
  records.reserve(ledger.size());
  for (const JournalRecord& record : ledger.Snapshot()) records.push_back(EncodeRecord(record));
  return records;
}

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
  Status rewritten = journal->Write(journal->ledger_);
  if (rewritten.ok()) return journal;
  if (contents.version < RecordFile::kVersion) {
    // Programs that know its version do not know what is written now.
    Status why(
        rewritten.code(), rewritten.reason(),
        "the journal " + path + " cannot become one of this version: " + rewritten.message());
    for (const auto& [key, value] : rewritten.details()) why.Add(key, value);
    return std::move(why)
        .With("version", contents.version)
        .With("needed_version", RecordFile::kVersion);
  }
  journal->not_rewritten_ = std::move(rewritten);
  journal->compact_at_ = journal->file_->size() + kSmall;
  return journal;
}

Result<std::unique_ptr<Journal>> Journal::Create(const std::string& path, const Ledger& ledger) {
  std::unique_ptr<Journal> journal(new Journal());
  TORPOR_ASSIGN_OR_RETURN(journal->file_, RecordFile::Create(path, Encoded(ledger)));
  journal->ledger_ = ledger;
  journal->compact_at_ = NextCompaction(journal->file_->size());
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
  TORPOR_RETURN_IF_ERROR(file_->Rewrite(Encoded(ledger)));
  compact_at_ = NextCompaction(file_->size());
  return Status::Ok();
}

}  // namespace torpor
