#include "daemon/keeper/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/base/crc32c.h"

namespace torpor {
namespace {

constexpr char kMagic[8] = "TORPORJ";
constexpr size_t kHeaderSize = 16;
constexpr size_t kRecordHeaderSize = 12;

void PutNumber(std::string& to, uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(static_cast<char>(number >> shift));
}

uint32_t NumberAt(std::string_view bytes, size_t offset) {
  uint32_t number = 0;
  for (size_t i = 4; i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i]);
  }
  return number;
}

std::string Header() {
  std::string header(kMagic, sizeof kMagic);
  PutNumber(header, RecordFile::kVersion);
  PutNumber(header, Crc32c(0, header.data(), header.size()));
  return header;
}

std::string Framed(std::string_view payload) {
  std::string record;
  PutNumber(record, static_cast<uint32_t>(payload.size()));
  PutNumber(record, Crc32c(0, record.data(), 4));
  PutNumber(record, Crc32c(0, payload.data(), payload.size()));
  record.append(payload);
  return record;
}

Status TooLarge(size_t size) {
  return InvalidArgument("RECORD_TOO_LARGE", "a record of the journal is too large")
      .With("record_bytes", size)
      .With("largest_bytes", RecordFile::kMaxRecord);
}

Status Damaged(const std::string& path, size_t offset, const char* what) {
  return Status(Code::kDataLoss, "JOURNAL_DAMAGED", "the journal " + path + " is damaged: " + what)
      .With("path", path)
      .With("offset", offset);
}

Status WriteAll(int fd, std::string_view bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written == 0 ? ENOSPC : errno;
      if (error != ENOSPC && error != EDQUOT && error != EFBIG) {
        return ErrnoStatus(error, "write the journal " + path);
      }
      return ResourceExhausted("JOURNAL_FULL", "no room for the journal " + path)
          .With("path", path)
          .With("needed_bytes", bytes.size());
    }
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return Status::Ok();
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return ErrnoStatus(errno, "look at the journal " + path);
  std::string bytes(static_cast<size_t>(about.st_size), '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read the journal " + path);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

bool IsAt(const std::string& path, int fd) {
  struct stat opened {};
  struct stat there {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

// The lock goes with the open file, and is the new file's from before it has its name.
Result<UniqueFd> OpenLocked(const std::string& path, int flags) {
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600));
    if (!fd.valid()) return ErrnoStatus(errno, "open the journal " + path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      // Its owner may have replaced it between the two.
      if (IsAt(path, fd.get())) return fd;
      continue;
    }
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "lock the journal " + path);
    return FailedPrecondition("JOURNAL_IN_USE", "another process has the journal " + path)
        .With("path", path);
  }
}

// Where the last whole record ends; what follows is one that was not written to its end.
Result<size_t> ReadRecords(const std::string& path, std::string_view bytes,
                           std::vector<std::string>& records) {
  size_t at = kHeaderSize;
  while (bytes.size() - at >= kRecordHeaderSize) {
    const size_t length = NumberAt(bytes, at);
    const std::string_view rest = bytes.substr(at + kRecordHeaderSize);
    if (Crc32c(0, bytes.data() + at, 4) != NumberAt(bytes, at + 4)) {
      return Damaged(path, at, "a record's length has changed");
    }
    if (rest.size() < length) return at;
    if (Crc32c(0, rest.data(), length) != NumberAt(bytes, at + 8)) {
      return Damaged(path, at, "a record has changed");
    }
    records.emplace_back(rest.substr(0, length));
    at += kRecordHeaderSize + length;
  }
  return at;
}

}  // namespace

Result<RecordFile::Parsed> RecordFile::Parse(const std::string& path, std::string_view bytes) {
  Parsed parsed;
  if (bytes.size() < kHeaderSize) {
    // Made, and not yet written to the end of its header.
    if (Header().compare(0, bytes.size(), bytes) == 0) return parsed;
    return Damaged(path, 0, "it is no journal");
  }
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return Damaged(path, 0, "it is no journal");
  }
  if (Crc32c(0, bytes.data(), 12) != NumberAt(bytes, 12)) {
    return Damaged(path, 0, "its header has changed");
  }
  parsed.version = NumberAt(bytes, sizeof kMagic);
  if (parsed.version > kVersion) {
    return FailedPrecondition("JOURNAL_TOO_NEW", "a newer version has written the journal " + path)
        .With("path", path)
        .With("version", parsed.version)
        .With("known_version", kVersion);
  }
  TORPOR_ASSIGN_OR_RETURN(parsed.end, ReadRecords(path, bytes, parsed.records));
  return parsed;
}

Result<RecordFile::Contents> RecordFile::Open(const std::string& path) {
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, OpenLocked(path, O_CREAT));
  TORPOR_ASSIGN_OR_RETURN(const std::string bytes, ReadAll(fd.get(), path));
  TORPOR_ASSIGN_OR_RETURN(Parsed parsed, Parse(path, bytes));
  Contents contents;
  contents.records = std::move(parsed.records);
  contents.version = parsed.version;
  contents.torn = Bytes(static_cast<int64_t>(bytes.size() - parsed.end));
  if (parsed.end == 0) {
    TORPOR_RETURN_IF_ERROR(WriteAll(fd.get(), Header(), 0, path));
    parsed.end = kHeaderSize;
  } else if (parsed.end < bytes.size() &&
             ::ftruncate(fd.get(), static_cast<off_t>(parsed.end)) != 0) {
    return ErrnoStatus(errno, "cut the journal " + path);
  }
  contents.file.reset(new RecordFile(path, std::move(fd), Bytes(static_cast<int64_t>(parsed.end))));
  return contents;
}

Result<std::unique_ptr<RecordFile>> RecordFile::Create(const std::string& path,
                                                       const std::vector<std::string>& records) {
  std::unique_ptr<RecordFile> file(new RecordFile(path, UniqueFd(), Bytes()));
  TORPOR_RETURN_IF_ERROR(file->Rewrite(records));
  return file;
}

Status RecordFile::Append(std::string_view record) {
  if (record.size() > kMaxRecord) return TooLarge(record.size());
  const std::string framed = Framed(record);
  Status written = WriteAll(fd_.get(), framed, size_.value(), path_);
  if (written.ok()) {
    size_ += Bytes(static_cast<int64_t>(framed.size()));
  } else if (::ftruncate(fd_.get(), size_.value()) != 0) {
    written.Add("cut_errno", std::to_string(errno));
  }
  return written;
}

Status RecordFile::Rewrite(const std::vector<std::string>& records) {
  std::string bytes = Header();
  for (const std::string& record : records) {
    if (record.size() > kMaxRecord) return TooLarge(record.size());
    bytes += Framed(record);
  }
  const std::string beside = path_ + ".new";
  const auto drop = [&](Status why) {
    ::unlink(beside.c_str());
    return why;
  };
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, OpenLocked(beside, O_CREAT | O_TRUNC));
  if (Status written = WriteAll(fd.get(), bytes, 0, beside); !written.ok()) {
    return drop(std::move(written));
  }
  if (::rename(beside.c_str(), path_.c_str()) != 0) {
    return drop(ErrnoStatus(errno, "replace the journal " + path_));
  }
  fd_ = std::move(fd);
  size_ = Bytes(static_cast<int64_t>(bytes.size()));
  return Status::Ok();
}

}  // namespace torpor
