#include "daemon/keeper/record.h"

#include <utility>

#include "lib/wire/codec.h"

namespace torpor {
namespace {

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

}  // namespace torpor
