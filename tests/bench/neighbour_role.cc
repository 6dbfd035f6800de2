#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/role.h"

namespace torpor::bench {
namespace {

constexpr double kKernelMs = 2;
constexpr unsigned int kThreadsPerBlock = 256;
constexpr unsigned int kBlocksPerProcessor = 8;

// Four chains of multiply-adds for `rounds`, in every thread; one store, so that they are needed.
constexpr char kSpin[] = R"(
.version 6.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 rounds)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .f32 %f<7>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [out];
  cvta.to.global.u64 %d1, %d1;
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, %tid.x;
  cvt.rn.f32.s32 %f1, %r2;
  fma.rn.f32 %f5, %f1, 0f33D6BF95, 0f3F800000;
  add.f32 %f2, %f1, 0f3F800000;
  add.f32 %f3, %f2, 0f3F800000;
  add.f32 %f4, %f3, 0f3F800000;
round:
  .pragma "nounroll";
  fma.rn.f32 %f1, %f5, %f1, 0f3F000000;
  fma.rn.f32 %f2, %f5, %f2, 0f3F000000;
  fma.rn.f32 %f3, %f5, %f3, 0f3F000000;
  fma.rn.f32 %f4, %f5, %f4, 0f3F000000;
  add.s32 %r1, %r1, -1;
  setp.ne.s32 %p1, %r1, 0;
  @%p1 bra round;
  add.f32 %f1, %f1, %f2;
  add.f32 %f3, %f3, %f4;
  add.f32 %f1, %f1, %f3;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mad.lo.s32 %r5, %r3, %r4, %r2;
  mul.wide.s32 %d2, %r5, 4;
  add.s64 %d3, %d1, %d2;
  st.global.f32 [%d3], %f1;
  ret;
}
)";

template <typename Function>
Function Cuda(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

#define TORPOR_RETURN_IF_CUDA_ERROR(expr)                                                          \
  do {                                                                                             \
    const CUresult result = (expr);                                                                \
    if (result != CUDA_SUCCESS) return Internal("CUDA", #expr " gives " + std::to_string(result)); \
  } while (false)

// The kernel on one device, queued on two streams in turn.
class Spinner {
 public:
  Status Open();
  // Makes the context the calling thread's own: before Queue and Wait.
  Status Enter() const {
    TORPOR_RETURN_IF_CUDA_ERROR(Cuda<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(context_));
    return Status::Ok();
  }
  // `ahead` kernels on stream `i`.
  Status Queue(int i, int ahead);
  Status Wait(int i);

 private:
  CUcontext context_ = nullptr;
  CUstream streams_[2] = {};
  CUfunction function_ = nullptr;
  CUdeviceptr out_ = 0;
  unsigned int blocks_ = 0;
  unsigned int rounds_ = 20'000;
};

Status Spinner::Open() {
  if (::dlopen("libcuda.so.1", RTLD_NOW) == nullptr) {
    return Unavailable("CUDA_LIBRARY_MISSING", "no libcuda.so.1");
  }
  TORPOR_RETURN_IF_CUDA_ERROR(Cuda<PFN_cuInit_v2000>("cuInit")(0));
  TORPOR_RETURN_IF_CUDA_ERROR(
      Cuda<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&context_, 0));
  TORPOR_RETURN_IF_ERROR(Enter());
  CUmodule module = nullptr;
  TORPOR_RETURN_IF_CUDA_ERROR(Cuda<PFN_cuModuleLoadData_v2000>("cuModuleLoadData")(&module, kSpin));
  TORPOR_RETURN_IF_CUDA_ERROR(
      Cuda<PFN_cuModuleGetFunction_v2000>("cuModuleGetFunction")(&function_, module, "spin"));
  int processors = 0;
  TORPOR_RETURN_IF_CUDA_ERROR(Cuda<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute")(
      &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  blocks_ = static_cast<unsigned int>(processors) * kBlocksPerProcessor;
  TORPOR_RETURN_IF_CUDA_ERROR(
      Cuda<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&out_, size_t{blocks_} * kThreadsPerBlock * 4));
  for (CUstream& stream : streams_) {
    TORPOR_RETURN_IF_CUDA_ERROR(
        Cuda<PFN_cuStreamCreate_v2000>("cuStreamCreate")(&stream, CU_STREAM_NON_BLOCKING));
  }
  // The length of a kernel, from one that is warm.
  for (int i = 0; i < 2; ++i) {
    const TimePoint start = std::chrono::steady_clock::now();
    TORPOR_RETURN_IF_ERROR(Queue(0, 1));
    TORPOR_RETURN_IF_ERROR(Wait(0));
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (i == 1) {
      rounds_ =
          static_cast<unsigned int>(std::clamp(rounds_ * kKernelMs / std::max(ms, 0.01), 1e3, 1e7));
    }
  }
  return Status::Ok();
}

Status Spinner::Queue(int i, int ahead) {
  void* arguments[] = {&out_, &rounds_};
  for (int k = 0; k < ahead; ++k) {
    TORPOR_RETURN_IF_CUDA_ERROR(Cuda<PFN_cuLaunchKernel_v4000>("cuLaunchKernel")(
        function_, blocks_, 1, 1, kThreadsPerBlock, 1, 1, 0, streams_[i], arguments, nullptr));
  }
  return Status::Ok();
}

Status Spinner::Wait(int i) {
  TORPOR_RETURN_IF_CUDA_ERROR(
      Cuda<PFN_cuStreamSynchronize_v2000>("cuStreamSynchronize")(streams_[i]));
  return Status::Ok();
}

// Counts what `step` does, over and over, until the input ends.
int CountSteps(const std::function<Status(int i)>& step, int kernels_per_step) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> kernels{0};
  std::atomic<bool> failed{false};
  std::thread thread([&] {
    for (int i = 0; !stop && !failed; i ^= 1) {
      failed = !step(i).ok();
      kernels += kernels_per_step;
    }
  });
  TimePoint since = std::chrono::steady_clock::now();
  const int status = AnswerLines([&](const std::vector<std::string>&) -> Result<std::string> {
    if (failed) return Internal("CUDA", "a kernel failed");
    const TimePoint now = std::chrono::steady_clock::now();
    const int64_t count = kernels.exchange(0);
    const double ms = std::chrono::duration<double, std::milli>(now - since).count();
    since = now;
    return "kernels=" + std::to_string(count) +
           " ms=" + std::to_string(ms / static_cast<double>(std::max<int64_t>(count, 1)));
  });
  stop = true;
  thread.join();
  return status;
}

}  // namespace

int RunNeighbour(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return 2;
  if (arguments[0] == "host") {
    Say(std::string("ready"));
    return CountSteps(
        [](int) {
          const TimePoint end = std::chrono::steady_clock::now() + milliseconds(2);
          while (std::chrono::steady_clock::now() < end) {
          }
          return Status::Ok();
        },
        1);
  }
  Spinner spinner;
  const Status opened = spinner.Open();
  Say(opened.ok() ? Result<std::string>("ready") : opened);
  if (!opened.ok()) return 1;
  constexpr int kAhead = 4;
  // One stream's kernels are queued while the other's run.
  if (!spinner.Queue(1, kAhead).ok()) return 1;
  return CountSteps(
      [&](int i) {
        TORPOR_RETURN_IF_ERROR(spinner.Enter());
        TORPOR_RETURN_IF_ERROR(spinner.Queue(i, kAhead));
        return spinner.Wait(i ^ 1);
      },
      kAhead);
}

}  // namespace torpor::bench
