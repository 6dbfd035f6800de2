#include "daemon/keeper/protocol.h"

#include <utility>

namespace torpor::keeper {
namespace {

// Well below what a frame takes.
constexpr size_t kPage = size_t{8} << 20;

}  // namespace

std::vector<std::string> TakePage(const std::vector<JournalRecord>& records, size_t& next) {
  std::vector<std::string> page;
  size_t size = 0;
  for (; next < records.size(); ++next) {
    std::string bytes = EncodeRecord(records[next]);
    size += bytes.size();
    if (!page.empty() && size > kPage) break;
    page.push_back(std::move(bytes));
  }
  return page;
}

Result<std::vector<JournalRecord>> DecodeAll(const std::vector<std::string>& records) {
  std::vector<JournalRecord> decoded;
  decoded.reserve(records.size());
  for (const std::string& bytes : records) {
    TORPOR_ASSIGN_OR_RETURN(JournalRecord record, DecodeRecord(bytes));
    decoded.push_back(std::move(record));
  }
  return decoded;
}

}  // namespace torpor::keeper
