#include "daemon/pool/pool_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "daemon/log.h"

namespace torpor {
namespace {

constexpr Bytes kHugePage = MiB(2);
// What others may take of a tmpfs between a look at its room and a touch.
constexpr Bytes kRoomLeft = MiB(512);
constexpr char kPoolSuffix[] = ".pool";
constexpr char kShmemEnabled[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

Status OutOfAddresses(Bytes size, int error) {
  return ResourceExhausted("HOST_MEMORY_EXHAUSTED", "the system gives no addresses for " +
                                                        FormatBytes(size) + " of host memory")
      .With("requested_bytes", size.value())
      .With("errno", error);
}

// Of all slabs, each with the gap behind it, and the gap before the first one.
Bytes MapSize(Bytes stride, size_t slabs) {
  return slabs == 0 ? Bytes(0) : stride * static_cast<int64_t>(slabs) + kHugePage;
}

// The first huge page that begins behind `address`.
std::byte* AlignUp(void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return reinterpret_cast<std::byte*>((value / kHugePage.size() + 1) * kHugePage.size());
}

// True if `fd` is the file that has the name.
bool IsAt(const std::string& path, int fd) {
  struct stat opened {};
  struct stat there {};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

// True if a touched byte of the file brings a whole huge page, which is what decides how fast the
// pool can be pinned; settings only say what may be. The file is empty again afterwards.
bool GivesHugePages(int fd) {
  constexpr int kTries = 8;  // memory may be in pieces just there
  const Bytes size = kHugePage * kTries;
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return false;
  const Bytes room(static_cast<int64_t>(system.f_bavail) * system.f_bsize);
  if (system.f_blocks != 0 && room < size) return false;  // a touch might end the process (SIGBUS)
  const size_t map_size = (size + kHugePage).size();
  if (::ftruncate(fd, size.value()) != 0) return false;
  void* const map = ::mmap(nullptr, map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return false;
  bool huge = false;
  void* const data =
      ::mmap(AlignUp(map), size.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (data != MAP_FAILED && ::madvise(data, size.size(), MADV_HUGEPAGE) == 0) {
    const auto pages = static_cast<size_t>(kHugePage.value() / ::sysconf(_SC_PAGESIZE));
    for (int i = 0; i < kTries && !huge; ++i) {
      std::byte* const at = static_cast<std::byte*>(data) + i * kHugePage.value();
      *const_cast<volatile std::byte*>(at) = std::byte{0};
      std::string resident(pages, '\0');
      huge =
          ::mincore(at, kHugePage.size(), reinterpret_cast<unsigned char*>(resident.data())) == 0 &&
          std::all_of(resident.begin(), resident.end(), [](char page) { return page & 1; });
    }
  }
  ::munmap(map, map_size);
  return ::ftruncate(fd, 0) == 0 && huge;
}

struct File {
  UniqueFd fd;
  bool huge = false;
};

Result<File> OpenMemfd() {
  File file;
  file.fd.Reset(::memfd_create("torpor-host-pool", MFD_CLOEXEC));
  if (!file.fd.valid()) return ErrnoStatus(errno, "memfd_create");
  file.huge = GivesHugePages(file.fd.get());
  return file;
}

Result<File> OpenTmpfs(Bytes size) {
  const UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return ErrnoStatus(errno, "open a tmpfs (needs CAP_SYS_ADMIN)");
  const auto set = [&](const char* key, const std::string& value) {
    return ::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0;
  };
  // The probe needs some room, too.
  const Bytes room = std::max(RoundUp(size, kHugePage), MiB(64));
  if (!set("huge", "always")) return ErrnoStatus(errno, "a tmpfs with huge pages");
  if (!set("size", std::to_string(room.value())) || !set("mode", "0700") ||
      ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoStatus(errno, "make a tmpfs");
  }
  const UniqueFd mount(::fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  if (!mount.valid()) return ErrnoStatus(errno, "mount a tmpfs");
  // The file keeps the mount, which nothing else can reach.
  File file;
  file.fd.Reset(::openat(mount.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.fd.valid()) return ErrnoStatus(errno, "make a file in a tmpfs");
  file.huge = GivesHugePages(file.fd.get());
  return file;
}

Status DirUnusable(const std::string& folder, const std::string& why) {
  return InvalidArgument("POOL_DIR_UNUSABLE", "no host pool in " + folder + ": " + why)
      .With("path", folder);
}

// What Create makes of it.
std::string PathTemplate(const std::string& folder, const std::string& prefix) {
  return std::filesystem::absolute(folder) / (prefix + "-XXXXXX" + kPoolSuffix);
}

// Files of the prefix that no process has open: a pool is locked for as long as one has.
void RemoveOthers(const std::string& folder, const std::string& prefix) {
  const std::string own = std::filesystem::path(PathTemplate(folder, prefix)).filename();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.size() != own.size() || name.compare(0, prefix.size() + 1, prefix + "-") != 0 ||
        entry.path().extension() != kPoolSuffix) {
      continue;
    }
    const UniqueFd file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (::unlink(entry.path().c_str()) == 0) log::Info("removed {}, an old host pool", name);
  }
}

Status Unavailable(const char* kind, const Status& why) {
  return FailedPrecondition("POOL_MEMORY_UNAVAILABLE",
                            std::string("no host pool of ") + kind + " memory: " + why.message())
      .With("kind", kind);
}

std::string ShmemEnabled() {
  std::string line;
  std::ifstream file(kShmemEnabled);
  std::getline(file, line);
  return line.empty() ? "missing" : line;
}

}  // namespace

Result<std::unique_ptr<PoolMemory>> PoolMemory::Reserve(PoolMemoryKind kind, Bytes size,
                                                        Bytes slab) {
  UniqueFd file;
  std::string description = "anonymous";
  const bool any = kind == PoolMemoryKind::kAuto;
  std::string missed;
  // `open` is tried; true if its file is the one to take.
  const auto take = [&](const char* name, Result<File> opened) {
    if (!opened.ok() || (any && !opened->huge)) {
      missed += std::string(missed.empty() ? "" : "; ") + name + ": " +
                (opened.ok() ? "no huge pages" : opened.status().message());
      return false;
    }
    file = std::move(opened->fd);
    description = std::string(name) + (opened->huge ? ", huge pages" : ", small pages");
    return true;
  };
  if (kind == PoolMemoryKind::kMemfd || any) {
    Result<File> memfd = OpenMemfd();
    if (!any && !memfd.ok()) return Unavailable("memfd", memfd.status());
    if (take("memfd", std::move(memfd)) && description == "memfd, small pages") {
      log::Warning("host pool: the memfd has small pages, so it is pinned slowly ({} is \"{}\")",
                   kShmemEnabled, ShmemEnabled());
    }
  }
  if (kind == PoolMemoryKind::kTmpfs || (any && !file.valid())) {
    Result<File> tmpfs = OpenTmpfs(size);
    if (!any && !tmpfs.ok()) return Unavailable("tmpfs", tmpfs.status());
    if (take("tmpfs", std::move(tmpfs)) && description == "tmpfs, small pages") {
      log::Warning("host pool: the tmpfs has small pages, so it is pinned slowly");
    }
  }
  if (any && !file.valid()) {
    log::Warning(
        "host pool: anonymous memory, which does not outlive this process ({}). Write \"advise\" "
        "to {} or give the daemon CAP_SYS_ADMIN",
        missed, kShmemEnabled);
  }
  std::unique_ptr<PoolMemory> memory(
      new PoolMemory(std::move(file), "", std::move(description), size, slab));
  TORPOR_RETURN_IF_ERROR(memory->Map());
  return memory;
}

Result<std::unique_ptr<PoolMemory>> PoolMemory::Create(const std::string& folder,
                                                       const std::string& prefix, Bytes size,
                                                       Bytes slab) {
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) return DirUnusable(folder, strerrordesc_np(errno));
  if (system.f_type != TMPFS_MAGIC) {
    return DirUnusable(folder, "it is not on a tmpfs, whose pages are memory");
  }
  RemoveOthers(folder, prefix);
  std::string path;
  UniqueFd file;
  do {  // again if another daemon has taken it for an old one before it was locked
    path = PathTemplate(folder, prefix);
    file.Reset(::mkostemps(path.data(), sizeof kPoolSuffix - 1, O_CLOEXEC));
    if (!file.valid()) return DirUnusable(folder, strerrordesc_np(errno));
  } while (::flock(file.get(), LOCK_EX) == 0 && !IsAt(path, file.get()));
  const auto make = [&]() -> Result<std::unique_ptr<PoolMemory>> {
    if (::statfs(folder.c_str(), &system) != 0) return DirUnusable(folder, strerrordesc_np(errno));
    const Bytes room(static_cast<int64_t>(system.f_bavail) * system.f_bsize);
    if (system.f_blocks != 0 && room < size) {  // 0: without a limit
      return ResourceExhausted("POOL_DIR_TOO_SMALL",
                               "a host pool of " + FormatBytes(size) + " in " + folder +
                                   ", whose file system has room for " + FormatBytes(room))
          .With("path", folder)
          .With("requested_bytes", size.value())
          .With("available_bytes", room.value());
    }
    const bool huge = GivesHugePages(file.get());
    if (!huge) {
      log::Warning(
          "host pool: {} has small pages, so it is pinned slowly (mount its tmpfs with "
          "huge=always)",
          path);
    }
    std::unique_ptr<PoolMemory> memory(new PoolMemory(
        std::move(file), path, huge ? "file, huge pages" : "file, small pages", size, slab));
    TORPOR_RETURN_IF_ERROR(memory->Map());
    return memory;
  };
  auto made = make();
  if (!made.ok()) ::unlink(path.c_str());
  return made;
}

Result<std::unique_ptr<PoolMemory>> PoolMemory::Open(const std::string& path,
                                                     std::string description, Bytes size,
                                                     Bytes slab) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && errno != ENOENT && errno != ENOTDIR) {
    return ErrnoStatus(errno, "open the host pool " + path);
  }
  if (!file.valid()) {
    return NotFound("POOL_MISSING", "there is no host pool " + path + " any more")
        .With("path", path);
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition("POOL_IN_USE", "another process has the host pool " + path)
        .With("path", path);
  }
  return Adopt(std::move(file), path, std::move(description), size, slab);
}

Result<std::unique_ptr<PoolMemory>> PoolMemory::Adopt(UniqueFd file, std::string path,
                                                      std::string description, Bytes size,
                                                      Bytes slab) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return ErrnoStatus(errno, "look at the host pool's file");
  if (size < Bytes(0) || slab <= Bytes(0) || status.st_size != size.value()) {
    return FailedPrecondition("POOL_CHANGED", "the host pool's file is not what it was")
        .With("file_bytes", status.st_size)
        .With("pool_bytes", size.value());
  }
  if (!path.empty() && !IsAt(path, file.get())) {
    path.clear();
    description += ", removed";
  }
  std::unique_ptr<PoolMemory> memory(
      new PoolMemory(std::move(file), std::move(path), std::move(description), size, slab));
  TORPOR_RETURN_IF_ERROR(memory->Map());
  return memory;
}

PoolMemory::PoolMemory(UniqueFd file, std::string path, std::string description, Bytes size,
                       Bytes slab)
    : file_(std::move(file)),
      path_(std::move(path)),
      description_(std::move(description)),
      size_(size),
      slab_(slab),
      stride_(RoundUp(slab, kHugePage) + kHugePage),
      slabs_(static_cast<size_t>(RoundUp(size, slab).value() / slab.value())) {}

Status PoolMemory::Map() {
  if (slabs_ == 0) return Status::Ok();
  if (file_.valid() && ::ftruncate(file_.get(), size_.value()) != 0) {
    return OutOfAddresses(size_, errno);
  }
  void* const map = ::mmap(nullptr, MapSize(stride_, slabs_).size(), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return OutOfAddresses(size_, errno);
  map_ = map;
  base_ = AlignUp(map);
  for (size_t i = 0; i < slabs_; ++i) {
    const int flags = file_.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const off_t offset = file_.valid() ? static_cast<off_t>(i) * slab_.value() : 0;
    if (::mmap(data(i), this->size(i).size(), PROT_READ | PROT_WRITE, flags | MAP_FIXED,
               file_.get(), offset) == MAP_FAILED) {
      return OutOfAddresses(size_, errno);
    }
    ::madvise(data(i), this->size(i).size(), MADV_HUGEPAGE);
    ::madvise(data(i), this->size(i).size(), MADV_DONTDUMP);
  }
  return Status::Ok();
}

PoolMemory::~PoolMemory() {
  if (map_ != nullptr) ::munmap(map_, MapSize(stride_, slabs_).size());
}

Bytes PoolMemory::size(size_t slab) const {
  return std::min(slab_, size_ - slab_ * static_cast<int64_t>(slab));
}

Status PoolMemory::TakeRoom(size_t slab, const std::byte* at, size_t length) const {
  if (path_.empty()) return Status::Ok();  // nobody else has that file system
  struct statfs system {};
  if (::fstatfs(file_.get(), &system) != 0 || system.f_blocks == 0 ||
      static_cast<int64_t>(system.f_bavail) * system.f_bsize > kRoomLeft.value()) {
    return Status::Ok();
  }
  const Bytes offset = slab_ * static_cast<int64_t>(slab) + Bytes(at - data(slab));
  while (::fallocate(file_.get(), 0, offset.value(), static_cast<off_t>(length)) != 0) {
    if (errno == EINTR) continue;
    return ResourceExhausted("HOST_MEMORY_EXHAUSTED",
                             "the file system of the host pool has no more room: " + path_)
        .With("requested_bytes", length)
        .With("errno", errno);
  }
  return Status::Ok();
}

Status PoolMemory::Populate(size_t slab, Bytes offset, Bytes size) const {
  std::byte* const end = data(slab) + (offset + size).value();
  for (std::byte* at = data(slab) + offset.value(); at < end;) {
    const auto length = std::min<size_t>(kHugePage.size(), end - at);
    TORPOR_RETURN_IF_ERROR(TakeRoom(slab, at, length));
    // A touch brings a huge page, and new memory may be slow to come. It holds only the lock of
    // this mapping (from Linux 6.7 on), where madvise holds that of all the process' addresses,
    // which malloc needs, too.
    auto* const byte = reinterpret_cast<volatile std::byte*>(at);
    *byte = *byte;
    int error = 0;
    do {
      error = ::madvise(at, length, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    if (error == EINVAL) {  // before Linux 5.14
      const int64_t page = ::sysconf(_SC_PAGESIZE);
      for (size_t i = 0; i < length; i += page) byte[i] = byte[i];
    } else if (error != 0) {
      return ResourceExhausted("HOST_MEMORY_EXHAUSTED", "the system gives no more host memory")
          .With("requested_bytes", size.value())
          .With("errno", error);
    }
    at += length;
  }
  return Status::Ok();
}

void PoolMemory::Drop(size_t slab) const {
  ::madvise(data(slab), size(slab).size(), file_.valid() ? MADV_REMOVE : MADV_DONTNEED);
}

}  // namespace torpor
