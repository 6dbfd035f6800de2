#include "lib/cuda/cuda_driver.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "lib/cuda/cuda_api.h"
#include "lib/cuda/cuda_device.h"
#include "lib/cuda/cuda_digest.h"
#include "lib/cuda/driver_error.h"
#include "lib/cuda/nvml.h"

namespace torpor {
namespace {

constexpr CUmemAllocationHandleType kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// For the time of one call: a thread that captures a graph, or another one that does, does not
// mind the call.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& api) : api_(api) {
    api_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { api_.ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaApi& api_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CUmemAllocationProp AllocationProperties(int ordinal, bool rdma_capable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  properties.requestedHandleTypes = kHandleType;
  properties.allocFlags.gpuDirectRDMACapable = rdma_capable ? 1 : 0;
  return properties;
}

Result<CUdevice> FindDevice(const CudaApi& api, const CudaDriver::Options& options) {
  int count = 0;
  TORPOR_RETURN_IF_ERROR(api.Translate(api.DeviceGetCount(&count), "cuDeviceGetCount"));
  std::string visible;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    TORPOR_RETURN_IF_ERROR(api.Translate(api.DeviceGet(&device, ordinal), "cuDeviceGet"));
    if (options.uuid.empty() && ordinal == options.ordinal) return device;
    TORPOR_ASSIGN_OR_RETURN(const std::string uuid, CudaDeviceUuid(api, device));
    if (uuid == options.uuid) return device;
    visible += (visible.empty() ? "" : ", ") + uuid;
  }
  const std::string asked =
      options.uuid.empty() ? "number " + std::to_string(options.ordinal) : options.uuid;
  return NotFound("NO_SUCH_DEVICE", "no device " + asked + "; this process sees: " +
                                        (visible.empty() ? "none" : visible) +
                                        " (a MIG instance only if CUDA_VISIBLE_DEVICES names it)")
      .With("device_count", count);
}

// -1: the kernel does not say.
int NumaNode(const CudaApi& api, CUdevice device) {
  std::ifstream file("/sys/bus/pci/devices/" + CudaDevicePciAddress(api, device) + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

}  // namespace

CudaDriver::ProbeResult CudaDriver::Probe() {
  ProbeResult probe;
  // Made when the kernel's driver finds a device; stays when the device is lost.
  const bool control = ::access("/dev/nvidiactl", F_OK) == 0;
  const Result<const CudaApi*> api = CudaApi::Load();
  CUresult result = CUDA_ERROR_NO_DEVICE;
  if (api.ok()) {
    result = (*api)->Init(0);
    if (result == CUDA_SUCCESS) result = (*api)->DeviceGetCount(&probe.devices);
    if (result == CUDA_SUCCESS && probe.devices == 0) result = CUDA_ERROR_NO_DEVICE;
    probe.error = (*api)->Translate(result, "cuInit");
  } else {
    probe.error = api.status();
    if (probe.error.reason() == "CUDA_DRIVER_TOO_OLD") result = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  }
  if (result == CUDA_SUCCESS) {
    probe.presence = Presence::kUsable;
  } else if (result == CUDA_ERROR_NO_DEVICE && !control) {
    probe.presence = Presence::kNone;
    probe.error = Status::Ok();
  } else {
    probe.presence = Presence::kBroken;
  }
  return probe;
}

Result<std::unique_ptr<CudaDriver>> CudaDriver::OpenDevice(const Options& options) {
  TORPOR_ASSIGN_OR_RETURN(const CudaApi* const api, CudaApi::Load());
  TORPOR_RETURN_IF_ERROR(api->Translate(api->Init(0), "cuInit"));
  TORPOR_ASSIGN_OR_RETURN(const CUdevice ordinal, FindDevice(*api, options));
  std::unique_ptr<CudaDriver> driver(new CudaDriver(*api, ordinal));
  TORPOR_RETURN_IF_ERROR(driver->Describe());
  if (options.small_context) TORPOR_RETURN_IF_ERROR(driver->RetainSmallContext());
  return driver;
}

Status CudaDriver::Describe() {
  for (const CUdevice_attribute needed :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    TORPOR_ASSIGN_OR_RETURN(const int supported, CudaDeviceAttribute(api_, needed, ordinal_));
    if (supported == 0) {
      return DriverNotSupported("the device has no virtual memory management with descriptors");
    }
  }
  TORPOR_ASSIGN_OR_RETURN(
      const int rdma,
      CudaDeviceAttribute(api_, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                          ordinal_));
  rdma_capable_ = rdma == 1;
  device_.kind = "cuda";
  TORPOR_ASSIGN_OR_RETURN(device_.name, CudaDeviceName(api_, ordinal_));
  TORPOR_ASSIGN_OR_RETURN(device_.uuid, CudaDeviceUuid(api_, ordinal_));
  size_t total = 0;
  TORPOR_RETURN_IF_ERROR(api_.Translate(api_.DeviceTotalMem(&total, ordinal_), "cuDeviceTotalMem"));
  device_.total = Bytes(static_cast<int64_t>(total));
  device_.numa_node = NumaNode(api_, ordinal_);
  const CUmemAllocationProp properties = AllocationProperties(ordinal_, rdma_capable_);
  size_t granularity = 0;
  TORPOR_RETURN_IF_ERROR(api_.Translate(
      api_.MemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity"));
  device_.granularity = Bytes(static_cast<int64_t>(granularity));
  return Status::Ok();
}

CudaDriver::CudaDriver(const CudaApi& api, int ordinal)
    : api_(api), ordinal_(ordinal), digest_(std::make_unique<CudaDigest>(api)) {}

CudaDriver::~CudaDriver() {
  CUctx_st* const context = context_.load();
  if (context == nullptr) return;
  {
    const RelaxedCapture relaxed(api_);
    MutexLock lock(mutex_);
    if (api_.CtxPushCurrent(context) == CUDA_SUCCESS) {
      for (const auto& [id, event] : events_) api_.EventDestroy(event);
      for (const auto& [id, stream] : streams_) api_.StreamDestroy(stream);
      digest_->Unload();
      CUcontext popped = nullptr;
      api_.CtxPopCurrent(&popped);
    }
  }
  api_.DevicePrimaryCtxRelease(ordinal_);
}

Status CudaDriver::RetainSmallContext() {
  const Nvml nvml(device_.uuid);
  const Bytes before = nvml.UsedMemory();
  TORPOR_RETURN_IF_ERROR(
      api_.Translate(api_.DevicePrimaryCtxSetFlags(ordinal_, CU_CTX_SCHED_BLOCKING_SYNC),
                     "cuDevicePrimaryCtxSetFlags"));
  TORPOR_RETURN_IF_ERROR(CallInContext("cuCtxSetLimit", Bytes(0), [this] {
    // Raised to what the device allows. Without one of them the context is larger, no more.
    api_.CtxSetLimit(CU_LIMIT_STACK_SIZE, 256);
    api_.CtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 4096);
    api_.CtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4096);
    // If it does not work, Digest says so.
    (void)digest_->WarmUp();
    return CUDA_SUCCESS;
  }));
  // The first export of a process takes 9 to 16 ms, and 0.5 ms whenever no other one is open: no
  // allocation should have to wait for that. The memory lives as long as its descriptor.
  if (const Result<MemoryHandle> handle = Create(device_.granularity); handle.ok()) {
    if (Result<UniqueFd> fd = Export(*handle); fd.ok()) first_export_ = *std::move(fd);
    (void)Release(*handle);
  }
  const Bytes after = nvml.UsedMemory();
  if (before >= Bytes(0) && after >= before) device_.context = after - before;
  return Status::Ok();
}

Result<CUctx_st*> CudaDriver::Context() {
  CUctx_st* context = context_.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  MutexLock lock(context_mutex_);
  context = context_.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  TORPOR_RETURN_IF_ERROR(
      api_.Translate(api_.DevicePrimaryCtxRetain(&context, ordinal_), "cuDevicePrimaryCtxRetain"));
  context_.store(context, std::memory_order_release);
  return context;
}

template <typename Body>
Status CudaDriver::Call(const char* call, Bytes size, Body body) {
  const RelaxedCapture relaxed(api_);
  return api_.Translate(body(), call, size);
}

template <typename Body>
Status CudaDriver::CallInContext(const char* call, Bytes size, Body body) {
  const RelaxedCapture relaxed(api_);
  TORPOR_ASSIGN_OR_RETURN(CUctx_st* const context, Context());
  TORPOR_RETURN_IF_ERROR(api_.Translate(api_.CtxPushCurrent(context), "cuCtxPushCurrent"));
  const CUresult result = body();
  CUcontext popped = nullptr;
  api_.CtxPopCurrent(&popped);
  return api_.Translate(result, call, size);
}

Result<MemoryInfo> CudaDriver::GetMemoryInfo() {
  size_t free = 0;
  size_t total = 0;
  TORPOR_RETURN_IF_ERROR(
      CallInContext("cuMemGetInfo", Bytes(0), [&] { return api_.MemGetInfo(&free, &total); }));
  return MemoryInfo{Bytes(static_cast<int64_t>(free)), Bytes(static_cast<int64_t>(total))};
}

// ---- Addresses

Result<DeviceAddress> CudaDriver::ReserveAddresses(Bytes size, Bytes alignment) {
  TORPOR_RETURN_IF_ERROR(CheckSize("reserve addresses", size, device_.granularity));
  TORPOR_RETURN_IF_ERROR(CheckAlignment("reserve addresses", alignment));
  CUdeviceptr address = 0;
  TORPOR_RETURN_IF_ERROR(Call("cuMemAddressReserve", size, [&] {
    return api_.MemAddressReserve(&address, size.size(), alignment.size(), 0, 0);
  }));
  return DeviceAddress(address);
}

Status CudaDriver::FreeAddresses(DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("free addresses", address, size, device_.granularity));
  return Call("cuMemAddressFree", size,
              [&] { return api_.MemAddressFree(address.value(), size.size()); });
}

// ---- Physical memory

Result<MemoryHandle> CudaDriver::Create(Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckSize("create", size, device_.granularity));
  const CUmemAllocationProp properties = AllocationProperties(ordinal_, rdma_capable_);
  CUmemGenericAllocationHandle handle = 0;
  TORPOR_RETURN_IF_ERROR(Call(
      "cuMemCreate", size, [&] { return api_.MemCreate(&handle, size.size(), &properties, 0); }));
  MutexLock lock(mutex_);
  handles_[++last_id_] = handle;
  return MemoryHandle(last_id_);
}

Result<unsigned long long> CudaDriver::FindHandle(const char* call, MemoryHandle handle) {
  MutexLock lock(mutex_);
  const auto it = handles_.find(handle.value());
  if (it == handles_.end()) return DriverInvalidValue(std::string(call) + ": no such handle");
  return it->second;
}

Status CudaDriver::Release(MemoryHandle handle) {
  std::map<uint64_t, unsigned long long>::node_type node;
  {
    MutexLock lock(mutex_);
    node = handles_.extract(handle.value());
  }
  if (node.empty()) return DriverInvalidValue("release: no such handle");
  Status status = Call("cuMemRelease", Bytes(0), [&] { return api_.MemRelease(node.mapped()); });
  if (!status.ok()) {
    MutexLock lock(mutex_);
    handles_.insert(std::move(node));
  }
  return status;
}

Result<UniqueFd> CudaDriver::Export(MemoryHandle handle) {
  TORPOR_ASSIGN_OR_RETURN(const auto exported, FindHandle("export", handle));
  int raw = -1;
  Status status = Call("cuMemExportToShareableHandle", Bytes(0), [&] {
    return api_.MemExportToShareableHandle(&raw, exported, kHandleType, 0);
  });
  if (status.reason() == "CUDA_ERROR_OPERATING_SYSTEM") {
    // CUDA does not tell why: see whether it was a lack of descriptors.
    const UniqueFd any(::open("/", O_PATH | O_CLOEXEC));
    if (!any.valid()) return ErrnoStatus(errno, "cuMemExportToShareableHandle");
  }
  if (!status.ok()) return status;
  UniqueFd fd(raw);
  if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) return ErrnoStatus(errno, "set close-on-exec");
  return fd;
}

Result<MemoryHandle> CudaDriver::Import(int fd, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckSize("import", size, device_.granularity));
  if (fd < 0) return DriverInvalidValue("import: not a descriptor");
  CUmemGenericAllocationHandle handle = 0;
  TORPOR_RETURN_IF_ERROR(Call("cuMemImportFromShareableHandle", size, [&] {
    return api_.MemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kHandleType);
  }));
  MutexLock lock(mutex_);
  handles_[++last_id_] = handle;
  return MemoryHandle(last_id_);
}

// ---- Mappings

Status CudaDriver::Map(DeviceAddress address, Bytes size, MemoryHandle handle) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("map", address, size, device_.granularity));
  TORPOR_ASSIGN_OR_RETURN(const auto mapped, FindHandle("map", handle));
  TORPOR_RETURN_IF_ERROR(Call(
      "cuMemMap", size, [&] { return api_.MemMap(address.value(), size.size(), 0, mapped, 0); }));
  MutexLock lock(mutex_);
  mappings_[address.value()] = Mapping{size};
  return Status::Ok();
}

Status CudaDriver::SetAccess(DeviceAddress address, Bytes size, Access access) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("set access", address, size, device_.granularity));
  CUmemAccessDesc description{};
  description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  description.location.id = ordinal_;
  description.flags = access == Access::kReadWrite ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                   : CU_MEM_ACCESS_FLAGS_PROT_READ;
  TORPOR_RETURN_IF_ERROR(Call("cuMemSetAccess", size, [&] {
    return api_.MemSetAccess(address.value(), size.size(), &description, 1);
  }));
  MutexLock lock(mutex_);
  auto it = mappings_.lower_bound(address.value());
  for (; it != mappings_.end() && it->first < (address + size).value(); ++it) {
    it->second.readable = true;
  }
  return Status::Ok();
}

Status CudaDriver::Unmap(DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckMappable("unmap", address, size, device_.granularity));
  std::map<uint64_t, Mapping> unmapped;
  {
    // Off the list before the call: afterwards another thread may already map there.
    MutexLock lock(mutex_);
    const auto first = mappings_.find(address.value());
    auto last = first;
    Bytes length;
    while (last != mappings_.end() && length < size && last->first == (address + length).value()) {
      length += last->second.size;
      ++last;
    }
    if (length != size) return BadRange("unmap", address, size, "not a range of whole mappings");
    unmapped.insert(first, last);
    mappings_.erase(first, last);
  }
  Status status =
      Call("cuMemUnmap", size, [&] { return api_.MemUnmap(address.value(), size.size()); });
  if (!status.ok()) {
    MutexLock lock(mutex_);
    mappings_.merge(unmapped);
  }
  return status;
}

// ---- Host memory

Status CudaDriver::RegisterHost(void* address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(CheckPages("register host", address, size));
  Status status = CallInContext("cuMemHostRegister", size, [&] {
    return api_.MemHostRegister(address, size.size(),
                                CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  });
  if (status.reason() == "DEVICE_OUT_OF_MEMORY") {
    return ResourceExhausted("HOST_MEMORY_NOT_PINNED", status.message())
        .With("requested_bytes", size.value());
  }
  if (!status.ok()) return status;
  MutexLock lock(mutex_);
  registrations_[reinterpret_cast<uintptr_t>(address)] = size;
  return Status::Ok();
}

Status CudaDriver::UnregisterHost(void* address) {
  std::map<uintptr_t, Bytes>::node_type node;
  {
    MutexLock lock(mutex_);
    node = registrations_.extract(reinterpret_cast<uintptr_t>(address));
  }
  if (node.empty()) return DriverInvalidValue("unregister host: not registered");
  Status status = CallInContext("cuMemHostUnregister", Bytes(0),
                                [&] { return api_.MemHostUnregister(address); });
  if (!status.ok()) {
    MutexLock lock(mutex_);
    registrations_.insert(std::move(node));
  }
  return status;
}

Result<DeviceAddress> CudaDriver::FindRegistered(const char* call, const void* address,
                                                 Bytes size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  uintptr_t registration = 0;
  {
    MutexLock lock(mutex_);
    const auto next = registrations_.upper_bound(begin);
    if (next != registrations_.begin()) {
      const auto& [at, length] = *std::prev(next);
      if (begin + size.size() <= at + length.size()) registration = at;
    }
  }
  if (registration == 0) return BadRange(call, DeviceAddress(begin), size, "not registered");
  CUdeviceptr device = 0;
  TORPOR_RETURN_IF_ERROR(CallInContext("cuMemHostGetDevicePointer", size, [&] {
    return api_.MemHostGetDevicePointer(&device, reinterpret_cast<void*>(registration), 0);
  }));
  return DeviceAddress(device + (begin - registration));
}

// ---- Streams

Result<StreamId> CudaDriver::CreateStream() {
  CUstream stream = nullptr;
  TORPOR_RETURN_IF_ERROR(CallInContext("cuStreamCreate", Bytes(0), [&] {
    return api_.StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  }));
  MutexLock lock(mutex_);
  streams_[++last_id_] = stream;
  return StreamId(last_id_);
}

Result<CUstream_st*> CudaDriver::FindStream(const char* call, StreamId stream) {
  MutexLock lock(mutex_);
  const auto it = streams_.find(stream.value());
  if (it == streams_.end()) return DriverInvalidValue(std::string(call) + ": no such stream");
  return it->second;
}

Status CudaDriver::DestroyStream(StreamId stream) {
  std::map<uint64_t, CUstream_st*>::node_type node;
  {
    MutexLock lock(mutex_);
    node = streams_.extract(stream.value());
  }
  if (node.empty()) return DriverInvalidValue("destroy stream: no such stream");
  return CallInContext("cuStreamDestroy", Bytes(0),
                       [&] { return api_.StreamDestroy(node.mapped()); });
}

Status CudaDriver::CopyToHost(StreamId stream, void* to, DeviceAddress from, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(CUstream const queue, FindStream("copy to host", stream));
  if (to == nullptr || size < Bytes(0)) return BadRange("copy to host", from, size, "bad argument");
  return CallInContext("cuMemcpyDtoHAsync", size,
                       [&] { return api_.MemcpyDtoHAsync(to, from.value(), size.size(), queue); });
}

Status CudaDriver::CopyToDevice(StreamId stream, DeviceAddress to, const void* from, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(CUstream const queue, FindStream("copy to device", stream));
  if (from == nullptr || size < Bytes(0)) {
    return BadRange("copy to device", to, size, "bad argument");
  }
  return CallInContext("cuMemcpyHtoDAsync", size,
                       [&] { return api_.MemcpyHtoDAsync(to.value(), from, size.size(), queue); });
}

Status CudaDriver::Clear(StreamId stream, DeviceAddress address, Bytes size) {
  TORPOR_ASSIGN_OR_RETURN(CUstream const queue, FindStream("clear", stream));
  if (size < Bytes(0)) return BadRange("clear", address, size, "bad argument");
  return CallInContext("cuMemsetD8Async", size,
                       [&] { return api_.MemsetD8Async(address.value(), 0, size.size(), queue); });
}

bool CudaDriver::Readable(DeviceAddress address, Bytes size) {
  MutexLock lock(mutex_);
  const uint64_t end = (address + size).value();
  auto it = mappings_.upper_bound(address.value());
  if (it == mappings_.begin()) return false;
  --it;
  for (uint64_t at = address.value(); at < end; ++it) {
    if (it == mappings_.end() || it->first > at || !it->second.readable) return false;
    const uint64_t mapping_end = it->first + it->second.size.size();
    if (mapping_end <= at) return false;
    at = mapping_end;
  }
  return true;
}

Status CudaDriver::Digest(StreamId stream, PartDigest* to, DeviceAddress from, Bytes size,
                          Bytes position) {
  TORPOR_ASSIGN_OR_RETURN(CUstream const queue, FindStream("digest", stream));
  TORPOR_RETURN_IF_ERROR(CheckDigest(to, from, size, position));
  if (size == Bytes(0)) return Status::Ok();
  if (!Readable(from, size)) return BadRange("digest", from, size, "not mapped with that access");
  const Bytes results(DigestParts(size, position) * static_cast<int64_t>(sizeof *to));
  TORPOR_ASSIGN_OR_RETURN(const DeviceAddress target, FindRegistered("digest to", to, results));
  Status status;
  TORPOR_RETURN_IF_ERROR(CallInContext("cuLaunchKernel", size, [&] {
    status = digest_->Launch(queue, target.value(), from, size, position);
    return CUDA_SUCCESS;
  }));
  return status;
}

Result<EventId> CudaDriver::RecordEvent(StreamId stream) {
  TORPOR_ASSIGN_OR_RETURN(CUstream const queue, FindStream("record event", stream));
  CUevent event = nullptr;
  TORPOR_RETURN_IF_ERROR(CallInContext("cuEventRecord", Bytes(0), [&] {
    CUresult result = api_.EventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return result;
    result = api_.EventRecord(event, queue);
    if (result != CUDA_SUCCESS) api_.EventDestroy(event);
    return result;
  }));
  MutexLock lock(mutex_);
  events_[++last_id_] = event;
  return EventId(last_id_);
}

Status CudaDriver::WaitEvent(EventId event) {
  std::map<uint64_t, CUevent_st*>::node_type node;
  {
    MutexLock lock(mutex_);
    node = events_.extract(event.value());
  }
  if (node.empty()) return DriverInvalidValue("wait event: no such event");
  return CallInContext("cuEventSynchronize", Bytes(0), [&] {
    const CUresult result = api_.EventSynchronize(node.mapped());
    api_.EventDestroy(node.mapped());
    return result;
  });
}

Status CudaDriver::Synchronize() {
  unsigned int flags = 0;
  int active = 0;
  TORPOR_RETURN_IF_ERROR(api_.Translate(api_.DevicePrimaryCtxGetState(ordinal_, &flags, &active),
                                        "cuDevicePrimaryCtxGetState"));
  if (active == 0) return Status::Ok();
  CUresult result = CUDA_SUCCESS;
  TORPOR_RETURN_IF_ERROR(CallInContext("cuCtxSynchronize", Bytes(0), [&] {
    result = api_.CtxSynchronize();
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_SUCCESS : result;
  }));
  if (result == CUDA_SUCCESS) return Status::Ok();
  return FailedPrecondition("STREAM_CAPTURE_ACTIVE",
                            "cuCtxSynchronize: a graph is being captured in this process; the "
                            "capture is broken");
}

}  // namespace torpor
