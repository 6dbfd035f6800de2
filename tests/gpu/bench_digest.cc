// How fast CudaDriver digests device memory, and what its kernel costs.
//
//   bench_digest [GIB]     16 unless told otherwise; less where the device has not so much free
//
// Digests that memory, mapped from handles of 128 MiB, in calls of several sizes, compares the
// digests with those of the CPU, and prints a table. In processes of their own it measures what the
// first digest costs: time (with the driver's cache of compiled kernels empty, and filled) and
// device memory. Nothing else may use the device meanwhile.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/cuda_driver.h"
#include "lib/cuda/digest.h"

namespace torpor {
namespace {

using std::chrono::steady_clock;

constexpr Bytes kHandle = MiB(128);

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return *std::move(result);
}

double MillisecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

std::byte* PinnedMemory(Driver& driver, Bytes size) {
  void* const memory =
      ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Must(ResourceExhausted("NO_MEMORY", "mmap failed"));
  std::memset(memory, 0, size.size());
  Must(driver.RegisterHost(memory, size));
  return static_cast<std::byte*>(memory);
}

DeviceAddress MapNew(Driver& driver, Bytes size) {
  const DeviceAddress address = Must(driver.ReserveAddresses(size, Bytes(0)));
  for (Bytes at; at < size; at += kHandle) {
    const MemoryHandle handle = Must(driver.Create(kHandle));
    Must(driver.Map(address + at, kHandle, handle));
    Must(driver.Release(handle));
  }
  Must(driver.SetAccess(address, size, Access::kReadWrite));
  return address;
}

void Wait(Driver& driver, StreamId stream) {
  Must(driver.WaitEvent(Must(driver.RecordEvent(stream))));
}

// Prints one line: milliseconds and bytes of device memory that the first digest costs beyond a
// context that has copied, and milliseconds of the second one.
int FirstDigest() {
  const auto driver = Must(CudaDriver::OpenDevice({}));
  const StreamId stream = Must(driver->CreateStream());
  const DeviceAddress address = MapNew(*driver, kHandle);
  std::byte* const host = PinnedMemory(*driver, MiB(4));
  auto* const results = reinterpret_cast<PartDigest*>(host + MiB(2).value());
  Must(driver->CopyToDevice(stream, address, host, MiB(2)));
  Must(driver->CopyToHost(stream, host, address, MiB(2)));
  Must(driver->Clear(stream, address, kHandle));
  Wait(*driver, stream);
  double took[2];
  const Bytes before = Must(driver->GetMemoryInfo()).free;
  for (double& milliseconds : took) {
    const auto start = steady_clock::now();
    Must(driver->Digest(stream, results, address, MiB(2), Bytes(0)));
    Wait(*driver, stream);
    milliseconds = MillisecondsSince(start);
  }
  const Bytes after = Must(driver->GetMemoryInfo()).free;
  std::printf("%.3f %lld %.3f\n", took[0], static_cast<long long>((before - after).value()),
              took[1]);
  return 0;
}

// Runs this program as FirstDigest.
void PrintFirstDigest(const char* program, const std::string& cache, const char* name) {
  const std::string command = "CUDA_CACHE_PATH='" + cache + "' '" + program + "' --first-digest";
  FILE* const child = ::popen(command.c_str(), "r");
  double first = -1;
  double second = -1;
  long long bytes = -1;
  const bool read =
      child != nullptr && std::fscanf(child, "%lf %lld %lf", &first, &bytes, &second) == 3;
  if (child == nullptr || ::pclose(child) != 0 || !read) {
    std::printf("| first digest, %s | failed |\n", name);
    return;
  }
  std::printf("| first digest of 2 MiB, %s | %.1f ms, device memory %.2f MiB |\n", name, first,
              static_cast<double>(bytes) / static_cast<double>(MiB(1).value()));
  std::printf("| second digest of 2 MiB | %.3f ms |\n", second);
}

struct Buffers {
  StreamId stream;
  DeviceAddress address;
  Bytes size;
  PartDigest* results;
};

double DigestOnce(Driver& driver, const Buffers& buffers, Bytes call) {
  const auto start = steady_clock::now();
  for (Bytes at; at < buffers.size; at += call) {
    Must(driver.Digest(buffers.stream, buffers.results + at / kDigestPart, buffers.address + at,
                       std::min(call, buffers.size - at), at));
  }
  Wait(driver, buffers.stream);
  return MillisecondsSince(start);
}

// How many parts have not the digest that the CPU gives. Every handle has the bytes of `pattern`.
int64_t CountWrong(const Buffers& buffers, const std::byte* pattern) {
  const int64_t parts = buffers.size / kDigestPart;
  const auto workers = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<int64_t> wrong(workers);
  std::vector<std::thread> threads;
  for (int64_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      for (int64_t part = worker; part < parts; part += workers) {
        const Bytes at = kDigestPart * part;
        const PartDigest digest = DigestBytes(pattern + (at % kHandle).value(), kDigestPart, at);
        if (buffers.results[part] != digest) ++wrong[worker];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t sum = 0;
  for (const int64_t count : wrong) sum += count;
  return sum;
}

int Measure(const char* program, Bytes size) {
  std::printf("| digest | |\n| --- | ---: |\n");
  char cache[] = "/tmp/bench_digest.XXXXXX";
  if (::mkdtemp(cache) == nullptr) Must(Internal("NO_FOLDER", "mkdtemp failed"));
  PrintFirstDigest(program, cache, "to be compiled");
  PrintFirstDigest(program, cache, "compiled before");
  if (std::system(("rm -rf '" + std::string(cache) + "'").c_str()) != 0) return 1;

  auto start = steady_clock::now();
  CudaDriver::Options options;
  options.small_context = true;
  const auto driver = Must(CudaDriver::OpenDevice(options));
  std::printf(
      "| small context with the kernel | %.1f ms, device memory %.2f MiB |\n",
      MillisecondsSince(start),
      static_cast<double>(driver->device().context.value()) / static_cast<double>(MiB(1).value()));

  const Bytes free = Must(driver->GetMemoryInfo()).free - GiB(1);
  size = kHandle * std::max<int64_t>(1, std::min(size, free) / kHandle);
  Buffers buffers;
  buffers.size = size;
  buffers.stream = Must(driver->CreateStream());
  buffers.address = MapNew(*driver, size);
  std::byte* const pattern = PinnedMemory(*driver, kHandle);
  uint64_t state = 1;
  for (Bytes at; at < kHandle; at += Bytes(8)) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint64_t value = state ^ state >> 32;
    std::memcpy(pattern + at.value(), &value, sizeof value);
  }
  const Bytes results = RoundUp(
      Bytes(DigestParts(size, Bytes(0)) * static_cast<int64_t>(sizeof(PartDigest))), MiB(2));
  buffers.results = reinterpret_cast<PartDigest*>(PinnedMemory(*driver, results));
  for (Bytes at; at < size; at += kHandle) {
    Must(driver->CopyToDevice(buffers.stream, buffers.address + at, pattern, kHandle));
  }
  Wait(*driver, buffers.stream);

  int64_t wrong = 0;
  for (const Bytes call : {size, kHandle, MiB(2)}) {
    double best = 0;
    double worst = 0;
    std::fill_n(buffers.results, size / kDigestPart, PartDigest());
    for (int round = 0; round < 6; ++round) {
      const double took = DigestOnce(*driver, buffers, call);
      if (round == 0) continue;  // warms up
      best = best == 0 ? took : std::min(best, took);
      worst = std::max(worst, took);
    }
    const double bytes = static_cast<double>(size.value());
    std::printf("| %s in calls of %s | %.0f - %.0f GB/s, %.2f - %.2f ms |\n",
                FormatBytes(size).c_str(), FormatBytes(call).c_str(), bytes / worst / 1e6,
                bytes / best / 1e6, best, worst);
    wrong += CountWrong(buffers, pattern);
  }
  start = steady_clock::now();
  for (int round = 0; round < 8; ++round) (void)DigestBytes(pattern, kHandle, Bytes(0));
  std::printf("| on one core of the CPU | %.1f GB/s |\n",
              static_cast<double>((kHandle * 8).value()) / MillisecondsSince(start) / 1e6);
  std::printf("| parts with another digest than the CPU's | %lld |\n",
              static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace torpor

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--first-digest") return torpor::FirstDigest();
  const int64_t gib = argc > 1 ? std::atoll(argv[1]) : 16;
  if (gib < 1 || gib > 1024) {
    std::fprintf(stderr, "usage: bench_digest [GIB]\n");
    return 2;
  }
  return torpor::Measure(argv[0], torpor::GiB(gib));
}
