// The journal's file, as whatever comes before has left it.
//
// Input: a byte of options, then the file.
//   bits 0-1  0: the bytes are the file; 1: its header is made right;
//             2, 3: so are its entries, each a byte of length and its bytes
//   bits 2-4  0: it is also opened as a file, one in eight
//   bits 5-7  bytes that are cut off its end

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/keeper/journal.h"
#include "daemon/keeper/ledger.h"
#include "daemon/keeper/record.h"
#include "daemon/keeper/record_file.h"
#include "lib/base/crc32c.h"
#include "tests/fuzz/require.h"

namespace torpor {
namespace {

void PutNumber(std::string& to, uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(static_cast<char>(number >> shift));
}

std::string Header() {
  std::string header("TORPORJ", 8);
  PutNumber(header, RecordFile::kVersion);
  PutNumber(header, Crc32c(0, header.data(), header.size()));
  return header;
}

void AppendEntry(std::string& file, std::string_view payload) {
  std::string length;
  PutNumber(length, static_cast<uint32_t>(payload.size()));
  file += length;
  PutNumber(file, Crc32c(0, length.data(), length.size()));
  PutNumber(file, Crc32c(0, payload.data(), payload.size()));
  file += payload;
}

std::string MakeFile(unsigned options, std::string_view bytes) {
  if ((options & 3u) == 0) return std::string(bytes);
  std::string file = Header();
  if ((options & 3u) == 1) return file += bytes;
  while (!bytes.empty()) {
    const size_t length = std::min<size_t>(static_cast<unsigned char>(bytes[0]), bytes.size() - 1);
    AppendEntry(file, bytes.substr(1, length));
    bytes.remove_prefix(1 + length);
  }
  return file;
}

std::string Encoded(const Ledger& ledger) { return EncodeRecords(ledger.Snapshot()); }

struct Read {
  std::string reason;  // why not; empty: it was
  size_t entries = 0;
  size_t end = 0;
  Ledger ledger;
};

Read ReadBytes(const std::string& bytes) {
  Read read;
  const Result<RecordFile::Parsed> parsed = RecordFile::Parse("fuzz", bytes);
  if (!parsed.ok()) {
    read.reason = parsed.status().reason();
    return read;
  }
  read.entries = parsed->records.size();
  read.end = parsed->end;
  REQUIRE(read.end <= bytes.size());
  for (const std::string& entry : parsed->records) {
    const Result<std::vector<JournalRecord>> records = DecodeRecords(entry);
    if (!records.ok()) {
      read.reason = records.status().reason();
      return read;
    }
    // What was understood comes back the same when it is said again.
    const std::string again = EncodeRecords(*records);
    const auto second = DecodeRecords(again);
    REQUIRE(second.ok() && EncodeRecords(*second) == again);
    read.ledger.Apply(*records);
  }
  return read;
}

// A ledger is what its snapshot leads to.
void CheckLedger(const Ledger& ledger) {
  const std::vector<JournalRecord> snapshot = ledger.Snapshot();
  REQUIRE(snapshot.size() == ledger.size());
  Ledger again;
  for (const JournalRecord& record : snapshot) again.Apply(record);
  REQUIRE(Encoded(again) == Encoded(ledger));
  for (const auto& [id, segment] : ledger.segments()) {
    REQUIRE(ledger.sessions().count(segment.worker) == 1);
  }
  for (const auto& [id, extent] : ledger.extents()) {
    REQUIRE(ledger.sessions().count(extent.worker) == 1);
  }
  for (const auto& [id, image] : ledger.images()) REQUIRE(ledger.segments().count(id) == 1);
}

// However much of its last entry is missing, the file says what it did before that one.
void CheckTorn(const std::string& file, const Read& whole) {
  if (whole.entries == 0 || whole.end != file.size()) return;
  constexpr size_t kLongest = 64;
  const Read before = ReadBytes(file.substr(0, file.size() - 1));
  REQUIRE(before.reason.empty() && before.entries + 1 == whole.entries);
  const size_t last = file.size() - before.end;
  for (size_t cut = 2; cut <= std::min(last, kLongest); ++cut) {
    const Result<RecordFile::Parsed> torn =
        RecordFile::Parse("fuzz", std::string_view(file).substr(0, file.size() - cut));
    REQUIRE(torn.ok() && torn->records.size() == before.entries && torn->end == before.end);
  }
}

class Folder {
 public:
  Folder() {
    char name[] = "/dev/shm/torpor-fuzz-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    name_ = name;
    path_ = name_ + "/journal";
  }
  ~Folder() { std::filesystem::remove_all(name_); }
  const std::string& path() const { return path_; }

 private:
  std::string name_;
  std::string path_;
};

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void CheckFile(const std::string& path, const std::string& file, const Read& expected) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << file;
  {
    const Result<std::unique_ptr<Journal>> journal = Journal::Open(path);
    if (!journal.ok()) {
      REQUIRE(journal.status().reason() == expected.reason);
      // Left for whoever wants to look at it, but for what was torn.
      const std::string left = Contents(path);
      REQUIRE(left == file.substr(0, left.size()) && left.size() >= expected.end);
      return;
    }
    REQUIRE(expected.reason.empty());
    REQUIRE((*journal)->torn().size() == file.size() - expected.end);
    REQUIRE(Encoded((*journal)->ledger()) == Encoded(expected.ledger));
    REQUIRE((*journal)->size().size() == std::filesystem::file_size(path));
  }
  Ledger model = expected.ledger;
  const std::vector<JournalRecord> more = {
      SessionOpened{WorkerId(1), "w", "s"}, ImageRecorded{SegmentId(1), {{MiB(2), MiB(2)}}},
      SegmentRecorded{SegmentId(1), WorkerId(1), "a", Bytes(0), MiB(2), JournalState::kOffloaded}};
  for (const auto& records : {more, {ExtentHeld{ExtentId(2), WorkerId(1), "a", {}, MiB(2)}}}) {
    const Result<std::unique_ptr<Journal>> journal = Journal::Open(path);
    REQUIRE(journal.ok());
    REQUIRE(Encoded((*journal)->ledger()) == Encoded(model));
    REQUIRE((*journal)->Record(records).ok());
    model.Apply(records);
    REQUIRE(Encoded((*journal)->ledger()) == Encoded(model));
  }
  const Read last = ReadBytes(Contents(path));
  REQUIRE(last.reason.empty() && Encoded(last.ledger) == Encoded(model));
  REQUIRE(!std::filesystem::exists(path + ".new"));
}

}  // namespace
}  // namespace torpor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torpor;
  static const Folder folder;
  if (size == 0) return 0;
  const unsigned options = data[0];
  std::string file = MakeFile(options, {reinterpret_cast<const char*>(data) + 1, size - 1});
  file.resize(file.size() - std::min<size_t>(file.size(), options >> 5));
  const Read read = ReadBytes(file);
  REQUIRE(read.reason.empty() || read.reason == "JOURNAL_DAMAGED" ||
          read.reason == "JOURNAL_TOO_NEW" || read.reason == "BAD_RECORD");
  if ((options & 2u) != 0) REQUIRE(read.reason.empty() || read.reason == "BAD_RECORD");
  if (read.reason.empty()) {
    CheckLedger(read.ledger);
    CheckTorn(file, read);
  }
  if ((options >> 2 & 7u) == 0) CheckFile(folder.path(), file, read);
  return 0;
}
