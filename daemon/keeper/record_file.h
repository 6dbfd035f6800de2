#ifndef TORPOR_DAEMON_KEEPER_RECORD_FILE_H_
#define TORPOR_DAEMON_KEEPER_RECORD_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"

namespace torpor {

// An append-only file of records, read again by whoever comes after its writer, however that ended.
//
//   header   "TORPORJ" and a zero byte, a 32-bit version, the CRC-32C of these 12 bytes
//   record   the payload's 32-bit length, the CRC-32C of these 4 bytes and of the payload, the
//   payload
//
// Numbers are little-endian. A record that was not written to its end is the last one, and is cut
// off at the next opening: nobody was told that it is there. Nothing is synced: the file lies on a
// tmpfs, where what is written is there for everyone until the machine ends. Not thread-safe.
class RecordFile {
 public:
  static constexpr uint32_t kVersion = 3;  // 2: records 13 to 17; 3: to 19
  static constexpr size_t kMaxRecord = size_t{16} << 20;

  struct Contents {
    std::unique_ptr<RecordFile> file;
    std::vector<std::string> records;
    Bytes torn{};                 // of a last record that was cut off
    uint32_t version = kVersion;  // of the file that was there
  };

  // What the bytes of a file say. Errors as Open's, of what is in it.
  struct Parsed {
    std::vector<std::string> records;
    size_t end = 0;  // of the last whole one; what follows is torn. 0: so is the header
    uint32_t version = kVersion;
  };
  static Result<Parsed> Parse(const std::string& path, std::string_view bytes);

  // Opens the file, or makes it (mode 0600), and locks it against others.
  //   FAILED_PRECONDITION JOURNAL_IN_USE; JOURNAL_TOO_NEW: with version and known_version
  //   DATA_LOSS JOURNAL_DAMAGED: what is there was not written by this class, or has changed since:
  //     with offset; the file is left as it is
  static Result<Contents> Open(const std::string& path);
  // A file with these records, which is there as a whole or not at all. It replaces another one.
  // Errors as Rewrite's.
  static Result<std::unique_ptr<RecordFile>> Create(const std::string& path,
                                                    const std::vector<std::string>& records);

  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Adds a record. On failure the file is as before.
  //   INVALID_ARGUMENT RECORD_TOO_LARGE; RESOURCE_EXHAUSTED JOURNAL_FULL: the file system is
  Status Append(std::string_view record);

  // Replaces all records by these: they are written beside the file, which is then replaced as a
  // whole. On failure the file is as before.
  Status Rewrite(const std::vector<std::string>& records);

  Bytes size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  RecordFile(std::string path, UniqueFd fd, Bytes size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  std::string path_;
  UniqueFd fd_;
  Bytes size_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_KEEPER_RECORD_FILE_H_
