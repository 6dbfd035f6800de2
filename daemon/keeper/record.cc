#include "daemon/keeper/record.h"

#include <utility>

#include "lib/wire/codec.h"

namespace torpor {
namespace {

// Stands where a record has its number.
constexpr unsigned char kTogether = 0xff;
static_assert(std::variant_size_v<JournalRecord> <= kTogether);

struct Together {
  std::vector<std::string> records;  // EncodeRecord
  template <class A>
  void Fields(A& a) {
    a(records);
  }
};

Status BadRecord(size_t number, size_t size) {
  return Status(Code::kDataLoss, "BAD_RECORD", "a record of the journal cannot be read")
      .With("number", number)
      .With("record_bytes", size);
}

template <size_t kNumber = 0>
Result<JournalRecord> DecodeAs(size_t number, std::string_view fields) {
  if constexpr (kNumber < std::variant_size_v<JournalRecord>) {
    if (number != kNumber) return DecodeAs<kNumber + 1>(number, fields);
    auto decoded = wire::Decode<std::variant_alternative_t<kNumber, JournalRecord>>(fields);
    if (!decoded.ok()) return BadRecord(number, fields.size());
    return JournalRecord(*std::move(decoded));
  } else {
    return BadRecord(number, fields.size());
  }
}

bool Sound(const JournalRecord& record) {
  const auto* const segment = std::get_if<SegmentRecorded>(&record);
  return segment == nullptr || segment->state <= JournalState::kDiscarded;
}

}  // namespace

bool IsEnd(const JournalRecord& record) {
  return std::holds_alternative<SessionClosed>(record) ||
         std::holds_alternative<SegmentFreed>(record) ||
         std::holds_alternative<ExtentDropped>(record) ||
         std::holds_alternative<ExtentLost>(record) ||
         std::holds_alternative<ImageDropped>(record) ||
         std::holds_alternative<ReservationReleased>(record);
}

std::string EncodeRecord(const JournalRecord& record) {
  std::string bytes(1, static_cast<char>(record.index()));
  bytes += std::visit([](const auto& one) { return wire::Encode(one); }, record);
  return bytes;
}

Result<JournalRecord> DecodeRecord(std::string_view bytes) {
  if (bytes.empty()) return BadRecord(0, 0);
  const size_t number = static_cast<unsigned char>(bytes[0]);
  Result<JournalRecord> record = DecodeAs(number, bytes.substr(1));
  if (record.ok() && !Sound(*record)) return BadRecord(number, bytes.size());
  return record;
}

std::string EncodeRecords(const std::vector<JournalRecord>& records) {
  if (records.size() == 1) return EncodeRecord(records[0]);
  Together together;
  together.records.reserve(records.size());
  for (const JournalRecord& record : records) together.records.push_back(EncodeRecord(record));
  return std::string(1, static_cast<char>(kTogether)) + wire::Encode(std::move(together));
}

Result<std::vector<JournalRecord>> DecodeRecords(std::string_view bytes) {
  std::vector<JournalRecord> records;
  if (bytes.empty() || static_cast<unsigned char>(bytes[0]) != kTogether) {
    TORPOR_ASSIGN_OR_RETURN(JournalRecord record, DecodeRecord(bytes));
    records.push_back(std::move(record));
    return records;
  }
  const Result<Together> together = wire::Decode<Together>(bytes.substr(1));
  if (!together.ok()) return BadRecord(kTogether, bytes.size());
  records.reserve(together->records.size());
  for (const std::string& one : together->records) {
    TORPOR_ASSIGN_OR_RETURN(JournalRecord record, DecodeRecord(one));
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace torpor
