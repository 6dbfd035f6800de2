// An in-process allocator for PyTorch whose segments can be put to sleep: one range of addresses
// and one physical handle for each of the caching allocator's segments, as engines have it today.
// Only a yardstick (README.md), as small as the idea allows. in_process.py loads it.
//
// It needs nothing but libc, and the libcuda that the process has loaded.

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

namespace {

constexpr int kMost = 16384;

struct Segment {
  CUdeviceptr address;
  size_t size;
  CUmemGenericAllocationHandle handle;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Segment segments[kMost];  // in the order of their allocation
int count = 0;

bool Good(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return true;
  fprintf(stderr, "%s: error %d\n", call, static_cast<int>(result));
  return false;
}

// Calls libcuda's function of that name.
#define CUDA(name, ...)                                                                     \
  ([&] {                                                                                    \
    static decltype(&name) function = nullptr;                                              \
    if (function == nullptr) {                                                              \
      function = reinterpret_cast<decltype(function)>(                                      \
          ::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), #name));                              \
    }                                                                                       \
    return Good(function == nullptr ? CUDA_ERROR_NOT_FOUND : function(__VA_ARGS__), #name); \
  }())

CUmemAllocationProp Properties(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

bool Map(int device, Segment& segment) {
  const CUmemAllocationProp properties = Properties(device);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA(cuMemCreate, &segment.handle, segment.size, &properties, 0) &&
         CUDA(cuMemMap, segment.address, segment.size, 0, segment.handle, 0) &&
         CUDA(cuMemSetAccess, segment.address, segment.size, &access, 1);
}

bool Unmap(const Segment& segment) {
  return CUDA(cuMemUnmap, segment.address, segment.size) && CUDA(cuMemRelease, segment.handle);
}

Segment* Find(CUdeviceptr address) {
  for (int i = 0; i < count; ++i) {
    if (segments[i].address == address) return &segments[i];
  }
  return nullptr;
}

class Lock {
 public:
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

}  // namespace

extern "C" {

void* peer_malloc(ssize_t size, int device, CUstream) {
  const CUmemAllocationProp properties = Properties(device);
  size_t unit = 0;
  if (!CUDA(cuMemGetAllocationGranularity, &unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) {
    return nullptr;
  }
  Segment segment = {};
  segment.size = (static_cast<size_t>(size) + unit - 1) / unit * unit;
  if (!CUDA(cuMemAddressReserve, &segment.address, segment.size, 0, 0, 0)) return nullptr;
  if (!Map(device, segment)) return nullptr;
  const Lock lock;
  if (count == kMost) return nullptr;
  segments[count++] = segment;
  return reinterpret_cast<void*>(segment.address);
}

void peer_free(void* address, ssize_t, int, CUstream) {
  const Lock lock;
  Segment* const segment = Find(reinterpret_cast<CUdeviceptr>(address));
  if (segment == nullptr) return;
  Unmap(*segment);
  (void)CUDA(cuMemAddressFree, segment->address, segment->size);
  for (Segment* next = segment; next + 1 < segments + count; ++next) *next = *(next + 1);
  --count;
}

// Writes address and size of up to `capacity` segments, two numbers each; how many there are.
int peer_segments(unsigned long long* out, int capacity) {
  const Lock lock;
  for (int i = 0; i < count && i < capacity; ++i) {
    *out++ = segments[i].address;
    *out++ = segments[i].size;
  }
  return count;
}

// 0, or 1 after an error, which stands on standard error.
int peer_sleep_one(unsigned long long address) {
  const Lock lock;
  Segment* const segment = Find(address);
  return segment != nullptr && Unmap(*segment) ? 0 : 1;
}

int peer_wake_one(unsigned long long address, int device) {
  const Lock lock;
  Segment* const segment = Find(address);
  return segment != nullptr && Map(device, *segment) ? 0 : 1;
}

}  // extern "C"
