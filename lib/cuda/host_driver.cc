#include "lib/cuda/host_driver.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <vector>

#include "lib/cuda/driver_error.h"

namespace torpor {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr Bytes kFallocateStep = MiB(256);

int64_t PageSize() { return ::sysconf(_SC_PAGESIZE); }

Status NotOwned(const char* call) {
  return FailedPrecondition("HOST_DEVICE_NOT_OWNED",
                            std::string(call) + ": this process only imports memory of the device");
}

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Reserved addresses without memory. Sets errno if false.
bool MapNothing(uint64_t begin, Bytes size) {
  return ::mmap(Pointer(begin), size.size(), PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

Bytes SizeOf(Bytes size) { return size; }
template <typename Range>
Bytes SizeOf(const Range& range) {
  return range.size;
}

// Whether one of the disjoint ranges, keyed by their begin, has an address of [begin, end).
template <typename Ranges>
bool Overlaps(const Ranges& ranges, uint64_t begin, uint64_t end) {
  const auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < end) return true;
  if (next == ranges.begin()) return false;
  const auto before = std::prev(next);
  return before->first + SizeOf(before->second).size() > begin;
}

bool IsGranularity(Bytes size) {
  return size >= Bytes(PageSize()) && (size.size() & (size.size() - 1)) == 0;
}

// A new file of `size` bytes, all of them there and zero, under the shared lock that says it is in
// use.
Result<UniqueFd> CreateFile(Bytes size) {
  UniqueFd fd(::memfd_create("torpor-device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (::ftruncate(fd.get(), size.value()) != 0) return ErrnoStatus(errno, "ftruncate");
  for (Bytes done; done < size;) {
    const Bytes step = std::min(size - done, kFallocateStep);
    if (::fallocate(fd.get(), 0, done.value(), step.value()) == 0) {
      done += step;
    } else if (errno == ENOSPC || errno == ENOMEM) {
      return DeviceOutOfMemory("create: the machine has no memory left for the host device", size);
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "fallocate");
    }
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus(errno, "seal");
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) return ErrnoStatus(errno, "flock");
  return fd;
}

}  // namespace

Result<std::unique_ptr<HostDriver>> HostDriver::CreateDevice(const DeviceOptions& options) {
  const auto bad = [](const char* why) {
    return InvalidArgument("BAD_DEVICE_OPTIONS", std::string("host device: ") + why);
  };
  if (options.uuid.empty()) return bad("no uuid");
  if (!IsGranularity(options.granularity)) {
    return bad("the granularity is no power of two, or less than a page");
  }
  if (options.total < options.granularity) return bad("the total is less than the granularity");
  DeviceInfo device;
  device.kind = "host";
  device.uuid = options.uuid;
  device.name = "host memory";
  device.total = options.total;
  device.granularity = options.granularity;
  device.context = Bytes(0);
  return std::unique_ptr<HostDriver>(new HostDriver(std::move(device), /*owner=*/true));
}

Result<std::unique_ptr<HostDriver>> HostDriver::OpenDevice(const DeviceInfo& device) {
  if (device.kind != "host" || !IsGranularity(device.granularity)) {
    return InvalidArgument("BAD_DEVICE_OPTIONS",
                           "\"" + device.uuid + "\" is no host device that this process can open");
  }
  DeviceInfo copy = device;
  copy.context = Bytes(0);
  return std::unique_ptr<HostDriver>(new HostDriver(std::move(copy), /*owner=*/false));
}

HostDriver::~HostDriver() {
  std::map<uint64_t, std::shared_ptr<HostStream>> streams;
  {
    MutexLock lock(mutex_);
    streams.swap(streams_);
  }
  streams.clear();
  MutexLock lock(mutex_);
  for (const auto& [address, size] : reservations_) ::munmap(Pointer(address), size.size());
}

Result<MemoryInfo> HostDriver::GetMemoryInfo() {
  if (!owner_) return NotOwned("get memory info");
  std::vector<UniqueFd> gone;
  MutexLock lock(mutex_);
  return MemoryInfo{std::max(Bytes(0), device_.total - Used(gone)), device_.total};
}

// ---- Addresses

Result<DeviceAddress> HostDriver::ReserveAddresses(Bytes size, Bytes alignment) {
  TORPOR_RETURN_IF_ERROR(CheckSize("reserve addresses", size, device_.granularity));
  TORPOR_RETURN_IF_ERROR(CheckAlignment("reserve addresses", alignment));
  alignment = std::max(alignment, device_.granularity);
  const uint64_t unit = alignment.size();
  const uint64_t length = size.size() + unit - PageSize();
  void* const map =
      ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    if (errno == ENOMEM) return DeviceOutOfMemory("reserve addresses: no room", size);
    return ErrnoStatus(errno, "mmap");
  }
  const auto raw = reinterpret_cast<uint64_t>(map);
  const uint64_t begin = (raw + unit - 1) / unit * unit;
  if (begin > raw) ::munmap(map, begin - raw);
  const uint64_t end = begin + size.size();
  if (raw + length > end) ::munmap(Pointer(end), raw + length - end);
  MutexLock lock(mutex_);
  reservations_[begin] = size;
  return DeviceAddress(begin);
}

Status HostDriver::FreeAddresses(DeviceAddress address, Bytes size) {
  const uint64_t begin = address.value();
  MutexLock lock(mutex_);
  const auto it = reservations_.find(begin);
  if (it == reservations_.end() || it->second != size) {
    return BadRange("free addresses", address, size, "not a reservation");
  }
  if (Overlaps(mappings_, begin, begin + size.size())) {
    return BadRange("free addresses", address, size, "still mapped");
  }
  if (::munmap(Pointer(begin), size.size()) != 0) return ErrnoStatus(errno, "munmap");
  reservations_.erase(it);
  return Status::Ok();
}

bool HostDriver::Reserved(uint64_t begin, uint64_t end) const {
  auto it = reservations_.upper_bound(begin);
  if (it == reservations_.begin()) return false;
  --it;
  while (it != reservations_.end() && it->first <= begin) {
    begin = std::max(begin, it->first + it->second.size());
    if (begin >= end) return true;
    ++it;
  }
  return false;
}

// ---- Physical memory

Status HostDriver::Count(int fd, FileId file, Bytes size) {
  if (!owner_ || counted_.count(file) != 0) return Status::Ok();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd witness(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!witness.valid()) return ErrnoStatus(errno, "open device memory again");
  counted_[file] = Counted{std::move(witness), size, 0};
  counted_bytes_ += size;
  return Status::Ok();
}

void HostDriver::Hold(FileId file) {
  const auto it = counted_.find(file);
  if (it == counted_.end()) return;
  if (it->second.held++ == 0) leaving_.erase(file);
}

void HostDriver::LetGo(FileId file, std::vector<UniqueFd>& gone) {
  const auto it = counted_.find(file);
  if (it == counted_.end() || --it->second.held > 0) return;
  if (!Uncount(file, gone)) leaving_.insert(file);
}

bool HostDriver::Uncount(FileId file, std::vector<UniqueFd>& gone) {
  const auto it = counted_.find(file);
  if (::flock(it->second.witness.get(), LOCK_EX | LOCK_NB) != 0) return false;
  counted_bytes_ -= it->second.size;
  gone.push_back(std::move(it->second.witness));
  counted_.erase(it);
  return true;
}

Bytes HostDriver::Used(std::vector<UniqueFd>& gone) {
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    it = Uncount(*it, gone) ? leaving_.erase(it) : std::next(it);
  }
  return counted_bytes_;
}

Result<MemoryHandle> HostDriver::Create(Bytes size) {
  if (!owner_) return NotOwned("create");
  TORPOR_RETURN_IF_ERROR(CheckSize("create", size, device_.granularity));
  MutexLock create_lock(create_mutex_);
  {
    std::vector<UniqueFd> gone;
    MutexLock lock(mutex_);
    const Bytes free = std::max(Bytes(0), device_.total - Used(gone));
    if (size > free) {
      return DeviceOutOfMemory("create: " + FormatBytes(size) + " asked, " + FormatBytes(free) +
                                   " free on the host device",
                               size)
          .With("available_bytes", free.value());
    }
  }
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, CreateFile(size));
  struct stat stat;
  if (::fstat(fd.get(), &stat) != 0) return ErrnoStatus(errno, "fstat");
  const FileId file(stat.st_dev, stat.st_ino);
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(Count(fd.get(), file, size));
  const uint64_t id = ++last_id_;
  Hold(file);
  handles_[id] = Handle{std::move(fd), file, size, /*imported=*/false};
  return MemoryHandle(id);
}

Status HostDriver::Release(MemoryHandle handle) {
  std::vector<UniqueFd> gone;
  MutexLock lock(mutex_);
  const auto it = handles_.find(handle.value());
  if (it == handles_.end()) return DriverInvalidValue("release: no such handle");
  const FileId file = it->second.file;
  handles_.erase(it);
  LetGo(file, gone);
  return Status::Ok();
}

Result<UniqueFd> HostDriver::Export(MemoryHandle handle) {
  MutexLock lock(mutex_);
  const auto it = handles_.find(handle.value());
  if (it == handles_.end()) return DriverInvalidValue("export: no such handle");
  if (it->second.imported) return DriverInvalidValue("export: the handle is an import");
  return it->second.fd.Duplicate();
}

Result<MemoryHandle> HostDriver::Import(int fd, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckSize("import", size, device_.granularity));
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) {
    if (errno == EBADF) return DriverInvalidValue("import: not a descriptor");
    return ErrnoStatus(errno, "duplicate file descriptor");
  }
  struct stat stat;
  if (::fstat(own.get(), &stat) != 0) return ErrnoStatus(errno, "fstat");
  const int seals = ::fcntl(own.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return DriverInvalidValue("import: the descriptor is no memory of a host device");
  }
  if (stat.st_size != size.value()) {
    return DriverInvalidValue("import: the memory has " + std::to_string(stat.st_size) +
                              " bytes, not " + std::to_string(size.value()));
  }
  // Has it already unless the file comes from elsewhere.
  if (::flock(own.get(), LOCK_SH | LOCK_NB) != 0) return ErrnoStatus(errno, "flock");
  const FileId file(stat.st_dev, stat.st_ino);
  MutexLock lock(mutex_);
  TORPOR_RETURN_IF_ERROR(Count(own.get(), file, size));
  const uint64_t id = ++last_id_;
  Hold(file);
  handles_[id] = Handle{std::move(own), file, size, /*imported=*/true};
  return MemoryHandle(id);
}

// ---- Mappings

Status HostDriver::Map(DeviceAddress address, Bytes size, MemoryHandle handle) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("map", address, size, device_.granularity));
  const uint64_t begin = address.value();
  const uint64_t end = begin + size.size();
  MutexLock lock(mutex_);
  const auto it = handles_.find(handle.value());
  if (it == handles_.end()) return BadRange("map", address, size, "no such handle");
  if (size != it->second.size) {
    return DriverNotSupported("map: the handle has " + std::to_string(it->second.size.value()) +
                              " bytes, the range " + std::to_string(size.value()));
  }
  if (!Reserved(begin, end)) return BadRange("map", address, size, "not reserved");
  if (Overlaps(mappings_, begin, end)) {
    return BadRange("map", address, size, "something is mapped there");
  }
  if (::mmap(Pointer(begin), size.size(), PROT_NONE, MAP_SHARED | MAP_FIXED, it->second.fd.get(),
             0) == MAP_FAILED) {
    return ErrnoStatus(errno, "mmap");
  }
  if (::madvise(Pointer(begin), size.size(), MADV_DONTFORK) != 0) {
    Status status = ErrnoStatus(errno, "madvise");
    (void)MapNothing(begin, size);
    return status;
  }
  Mapping mapping;
  mapping.size = size;
  mapping.file = it->second.file;
  Hold(mapping.file);
  mappings_[begin] = mapping;
  return Status::Ok();
}

Result<HostDriver::Mappings::iterator> HostDriver::QuietMappings(const char* call, uint64_t begin,
                                                                 uint64_t end, bool unmapping) {
  for (;;) {
    const auto first = mappings_.find(begin);
    uint64_t at = begin;
    bool copying = false;
    auto it = first;
    for (; it != mappings_.end() && it->first == at && at < end && !it->second.unmapping; ++it) {
      at += it->second.size.size();
      copying = copying || it->second.copying > 0;
    }
    if (at != end) {
      return BadRange(call, DeviceAddress(begin), Bytes(static_cast<int64_t>(end - begin)),
                      "not a range of whole mappings");
    }
    if (unmapping) {
      for (auto mark = first; mark != it; ++mark) mark->second.unmapping = true;
      for (auto mark = first; mark != it; ++mark) {
        while (mark->second.copying > 0) copied_.Wait(mutex_);
      }
      return first;
    }
    if (!copying) return first;
    copied_.Wait(mutex_);
  }
}

Status HostDriver::SetAccess(DeviceAddress address, Bytes size, Access access) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("set access", address, size, device_.granularity));
  const uint64_t begin = address.value();
  const uint64_t end = begin + size.size();
  MutexLock lock(mutex_);
  TORPOR_ASSIGN_OR_RETURN(const auto first,
                          QuietMappings("set access", begin, end, /*unmapping=*/false));
  const bool write = access == Access::kReadWrite;
  if (::mprotect(Pointer(begin), size.size(), write ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
    return ErrnoStatus(errno, "mprotect");
  }
  for (auto it = first; it != mappings_.end() && it->first < end; ++it) {
    it->second.protection = write ? Protection::kReadWrite : Protection::kReadOnly;
  }
  return Status::Ok();
}

Status HostDriver::Unmap(DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("unmap", address, size, device_.granularity));
  const uint64_t begin = address.value();
  const uint64_t end = begin + size.size();
  Mappings::iterator it;
  {
    MutexLock lock(mutex_);
    TORPOR_ASSIGN_OR_RETURN(it, QuietMappings("unmap", begin, end, /*unmapping=*/true));
  }
  // Marked as they are, the mappings stay where they are, and nobody else touches them.
  const bool unmapped =
      ::mmap(Pointer(begin), size.size(), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
  const int error = errno;
  std::vector<UniqueFd> gone;
  MutexLock lock(mutex_);
  if (!unmapped) {
    for (; it != mappings_.end() && it->first < end; ++it) it->second.unmapping = false;
    return ErrnoStatus(error, "mmap");
  }
  while (it != mappings_.end() && it->first < end) {
    const FileId file = it->second.file;
    it = mappings_.erase(it);
    LetGo(file, gone);
  }
  return Status::Ok();
}

// ---- Host memory

Status HostDriver::RegisterHost(void* address, Bytes size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  TORPOR_RETURN_IF_ERROR(CheckPages("register host", address, size));
  unsigned char resident[4096];
  const int64_t step = static_cast<int64_t>(sizeof resident) * PageSize();
  for (int64_t offset = 0; offset < size.value(); offset += step) {
    const int64_t length = std::min(step, size.value() - offset);
    if (::mincore(static_cast<char*>(address) + offset, length, resident) != 0) {
      return BadRange("register host", DeviceAddress(begin), size, "no memory there");
    }
  }
  MutexLock lock(mutex_);
  if (Overlaps(registrations_, begin, begin + size.size())) {
    return BadRange("register host", DeviceAddress(begin), size, "already registered");
  }
  registrations_[begin] = size;
  return Status::Ok();
}

Status HostDriver::UnregisterHost(void* address) {
  MutexLock lock(mutex_);
  if (registrations_.erase(reinterpret_cast<uintptr_t>(address)) == 0) {
    return DriverInvalidValue("unregister host: not registered");
  }
  return Status::Ok();
}

// Memory that no registration touches is pageable: a legal end of a copy.
Status HostDriver::CheckHostRange(const char* call, uintptr_t begin, Bytes size) {
  const uintptr_t end = begin + size.size();
  auto it = registrations_.upper_bound(begin);
  if (it != registrations_.begin()) {
    const auto before = std::prev(it);
    const uintptr_t registered_end = before->first + before->second.size();
    if (end <= registered_end) return Status::Ok();
    if (begin < registered_end) it = before;
  }
  if (it == registrations_.end() || it->first >= end) return Status::Ok();
  return BadRange(call, DeviceAddress(begin), size,
                  "host range crosses the border of a registration");
}

bool HostDriver::Registered(uintptr_t begin, Bytes size) {
  auto it = registrations_.upper_bound(begin);
  if (it == registrations_.begin()) return false;
  --it;
  return begin + size.size() <= it->first + it->second.size();
}

}  // namespace torpor
