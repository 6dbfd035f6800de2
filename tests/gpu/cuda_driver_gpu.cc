// What is particular to CudaDriver, on a real GPU, the first that is visible. Nothing else may use
// the device meanwhile.

#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/status_matchers.h"
#include "lib/cuda/cuda_driver.h"

namespace torpor {
namespace {

template <typename Function>
Function Cuda(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

std::unique_ptr<CudaDriver> Open(bool small_context) {
  CudaDriver::Options options;
  options.small_context = small_context;
  auto driver = CudaDriver::OpenDevice(options);
  EXPECT_THAT(driver, IsOk());
  return *std::move(driver);
}

CUcontext CurrentContext() {
  CUcontext context = nullptr;
  EXPECT_EQ(Cuda<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent")(&context), CUDA_SUCCESS);
  return context;
}

bool PrimaryContextIsUp() {
  unsigned int flags = 0;
  int active = 0;
  EXPECT_EQ(
      Cuda<PFN_cuDevicePrimaryCtxGetState_v7000>("cuDevicePrimaryCtxGetState")(0, &flags, &active),
      CUDA_SUCCESS);
  return active != 0;
}

TEST(CudaDriverTest, IsUsable) {
  const CudaDriver::ProbeResult probe = CudaDriver::Probe();
  EXPECT_EQ(probe.presence, CudaDriver::Presence::kUsable);
  EXPECT_GE(probe.devices, 1);
  EXPECT_THAT(probe.error, IsOk());
}

TEST(CudaDriverTest, NamesTheDeviceAsNvidiaSmiDoes) {
  const auto driver = Open(false);
  char listed[128] = {};
  FILE* const smi = ::popen("nvidia-smi --query-gpu=uuid,name --format=csv,noheader -i 0", "r");
  ASSERT_NE(std::fgets(listed, sizeof listed, smi), nullptr);
  ::pclose(smi);
  EXPECT_EQ(driver->device().uuid + ", " + driver->device().name + "\n", listed);
  CudaDriver::Options options;
  options.uuid = driver->device().uuid;
  EXPECT_THAT(CudaDriver::OpenDevice(options), IsOk());
  options.uuid[4] = options.uuid[4] == '0' ? '1' : '0';
  EXPECT_THAT(CudaDriver::OpenDevice(options), HasReason("NO_SUCH_DEVICE"));
  CudaDriver::Options ordinal;
  ordinal.ordinal = 1000;
  EXPECT_THAT(CudaDriver::OpenDevice(ordinal), HasReason("NO_SUCH_DEVICE"));
}

TEST(CudaDriverTest, ASmallContextIsMeasured) {
  const auto driver = Open(true);
  EXPECT_TRUE(PrimaryContextIsUp());
  EXPECT_GT(driver->device().context, MiB(100));
  EXPECT_LT(driver->device().context, MiB(400));
  std::printf("context: %s\n", FormatBytes(driver->device().context).c_str());
  EXPECT_EQ(driver->GetMemoryInfo()->total, driver->device().total);
}

TEST(CudaDriverTest, AnApplicationsContextStaysAsItIs) {
  const auto driver = Open(false);
  EXPECT_EQ(driver->device().context, Bytes(-1));
  EXPECT_THAT(driver->GetMemoryInfo(), IsOk());
  EXPECT_EQ(CurrentContext(), nullptr);
  CUcontext context = nullptr;
  ASSERT_EQ(Cuda<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&context, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(Cuda<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  EXPECT_THAT(driver->GetMemoryInfo(), IsOk());
  EXPECT_EQ(CurrentContext(), context);
  size_t stack = 0;
  EXPECT_EQ(Cuda<PFN_cuCtxGetLimit_v3010>("cuCtxGetLimit")(&stack, CU_LIMIT_STACK_SIZE),
            CUDA_SUCCESS);
  EXPECT_GE(stack, 1024u);
  Cuda<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(nullptr);
  Cuda<PFN_cuDevicePrimaryCtxRelease_v11000>("cuDevicePrimaryCtxRelease_v2")(0);
}

TEST(CudaDriverTest, MemoryAloneNeedsNoContext) {
  const auto driver = Open(false);
  const DeviceAddress address = *driver->ReserveAddresses(MiB(4), Bytes(0));
  const MemoryHandle handle = *driver->Create(MiB(2));
  const UniqueFd fd = *driver->Export(handle);
  const MemoryHandle import = *driver->Import(fd.get(), MiB(2));
  EXPECT_THAT(driver->Map(address, MiB(2), handle), IsOk());
  EXPECT_THAT(driver->Map(address + MiB(2), MiB(2), import), IsOk());
  EXPECT_THAT(driver->SetAccess(address, MiB(4), Access::kReadWrite), IsOk());
  EXPECT_THAT(driver->Unmap(address, MiB(2)), IsOk());
  EXPECT_THAT(driver->Release(handle), IsOk());
  EXPECT_THAT(driver->Release(import), IsOk());
  EXPECT_THAT(driver->Synchronize(), IsOk());
  EXPECT_FALSE(PrimaryContextIsUp());
  // A context that comes up later sees the mapping.
  const StreamId stream = *driver->CreateStream();
  EXPECT_TRUE(PrimaryContextIsUp());
  const std::string out(4096, 'x');
  std::string in(4096, 'y');
  EXPECT_THAT(driver->CopyToDevice(stream, address + MiB(2), out.data(), Bytes(4096)), IsOk());
  EXPECT_THAT(driver->CopyToHost(stream, in.data(), address + MiB(2), Bytes(4096)), IsOk());
  EXPECT_THAT(driver->WaitEvent(*driver->RecordEvent(stream)), IsOk());
  EXPECT_EQ(in, out);
  EXPECT_THAT(driver->Unmap(address + MiB(2), MiB(2)), IsOk());
  EXPECT_THAT(driver->FreeAddresses(address, MiB(4)), IsOk());
}

TEST(CudaDriverTest, LackOfDescriptorsIsNoLackOfMemory) {
  const auto driver = Open(true);
  const MemoryHandle handle = *driver->Create(MiB(2));
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{1, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status exported = driver->Export(handle).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(exported, HasReason("FILE_DESCRIPTORS_EXHAUSTED"));
  EXPECT_THAT(driver->Export(handle), IsOk());
}

// Everything but Synchronize goes through while a thread captures a graph, in the strictest mode.
TEST(CudaDriverTest, CapturesGoOn) {
  const auto driver = Open(false);
  ASSERT_THAT(driver->GetMemoryInfo(), IsOk());
  CUcontext context = nullptr;
  ASSERT_EQ(Cuda<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&context, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(Cuda<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(Cuda<PFN_cuStreamCreate_v2000>("cuStreamCreate")(&stream, CU_STREAM_NON_BLOCKING),
            CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(Cuda<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&memory, 4096), CUDA_SUCCESS);
  const auto begin = Cuda<PFN_cuStreamBeginCapture_v10010>("cuStreamBeginCapture_v2");
  const auto end = Cuda<PFN_cuStreamEndCapture_v10000>("cuStreamEndCapture");
  const auto set = Cuda<PFN_cuMemsetD8Async_v3020>("cuMemsetD8Async");

  const auto life = [&] {
    const DeviceAddress address = *driver->ReserveAddresses(MiB(2), Bytes(0));
    const MemoryHandle handle = *driver->Create(MiB(2));
    EXPECT_THAT(driver->Map(address, MiB(2), handle), IsOk());
    EXPECT_THAT(driver->SetAccess(address, MiB(2), Access::kReadWrite), IsOk());
    const UniqueFd fd = *driver->Export(handle);
    EXPECT_THAT(driver->Release(*driver->Import(fd.get(), MiB(2))), IsOk());
    const StreamId copies = *driver->CreateStream();
    std::vector<char> host(MiB(4).size());
    char* const page = host.data() + (4096 - reinterpret_cast<uintptr_t>(host.data()) % 4096);
    EXPECT_THAT(driver->RegisterHost(page, MiB(2)), IsOk());
    EXPECT_THAT(driver->CopyToDevice(copies, address, page, MiB(2)), IsOk());
    EXPECT_THAT(driver->CopyToHost(copies, host.data() + MiB(3).size(), address, Bytes(100)),
                IsOk());
    EXPECT_THAT(driver->Clear(copies, address, MiB(2)), IsOk());
    EXPECT_THAT(
        driver->Digest(copies, reinterpret_cast<PartDigest*>(page), address, MiB(2), Bytes(0)),
        IsOk());
    EXPECT_THAT(driver->WaitEvent(*driver->RecordEvent(copies)), IsOk());
    EXPECT_THAT(driver->GetMemoryInfo(), IsOk());
    EXPECT_THAT(driver->UnregisterHost(page), IsOk());
    EXPECT_THAT(driver->DestroyStream(copies), IsOk());
    EXPECT_THAT(driver->Unmap(address, MiB(2)), IsOk());
    EXPECT_THAT(driver->Release(handle), IsOk());
    EXPECT_THAT(driver->FreeAddresses(address, MiB(2)), IsOk());
  };
  for (const bool same_thread : {false, true}) {
    ASSERT_EQ(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    ASSERT_EQ(set(memory, 1, 4096, stream), CUDA_SUCCESS);
    if (same_thread) {
      life();
    } else {
      std::thread(life).join();
    }
    CUgraph graph = nullptr;
    EXPECT_EQ(end(stream, &graph), CUDA_SUCCESS) << "same thread: " << same_thread;
  }

  ASSERT_EQ(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(set(memory, 1, 4096, stream), CUDA_SUCCESS);
  std::thread([&] {
    const Status status = driver->Synchronize();
    EXPECT_THAT(status, HasReason("STREAM_CAPTURE_ACTIVE"));
    EXPECT_THAT(status, HasCode(Code::kFailedPrecondition));
  }).join();
  CUgraph graph = nullptr;
  EXPECT_NE(end(stream, &graph), CUDA_SUCCESS);
  EXPECT_THAT(driver->Synchronize(), IsOk());
  Cuda<PFN_cuDevicePrimaryCtxRelease_v11000>("cuDevicePrimaryCtxRelease_v2")(0);
}

}  // namespace
}  // namespace torpor
