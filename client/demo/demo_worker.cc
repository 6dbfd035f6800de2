// A worker as an inference engine would be one: it loads a safetensors file into memory that the
// daemon owns, computes, and lets others put it to sleep. It says what happens on standard output,
// one line each, and obeys commands on standard input.

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/demo/model.h"
#include "client/demo/safetensors.h"
#include "client/torpor.hpp"
#include "lib/base/crc32c.h"
#include "lib/base/units.h"
#include "lib/cli/flag_set.h"

namespace torpor::demo {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

// How long commands and the computation wait for what sleeps.
constexpr milliseconds kPatience{1000};
constexpr milliseconds kComputePatience{100};

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, " seconds=%.3f", seconds);
  return text;
}

std::string Hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

void Print(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

// One line; from any thread.
template <typename... Parts>
void Say(const Parts&... parts) {
  std::ostringstream line;
  (line << ... << parts) << '\n';
  Print(line.str());
}

struct Flags {
  std::string file;
  std::string name = "demo";
  std::string runtime_dir;
  std::string socket;
  std::string driver = "auto";
  std::string reservation;
  Bytes kv_cache{-1};  // -1: by the weights
};

// Reads its weights over and over on a thread of its own, while they are awake.
class Computation {
 public:
  // `failed` is called, once, if the weights are wrong or a call fails.
  Computation(const Model& model, std::function<void()> failed)
      : model_(model), failed_(std::move(failed)), thread_([this] { Run(); }) {}
  ~Computation() {
    stop_ = true;
    thread_.join();
  }
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;

  std::uint64_t steps() const { return steps_; }

 private:
  void Run() {
    std::vector<char> buffer;
    SteadyClock::time_point asleep_since;
    bool asleep = false;
    while (!stop_) {
      try {
        const bool right = model_.Compute(steps_, buffer, kComputePatience);
        if (asleep) Say("resumed", Seconds(SecondsSince(asleep_since)));
        asleep = false;
        if (!right) {
          Say("error step ", steps_.load(), ": the weights have changed");
          return failed_();
        }
        ++steps_;
        std::this_thread::sleep_for(milliseconds(1));
      } catch (const Error& error) {
        if (error.reason() != "ASLEEP") {
          Say("error ", error.what());
          return failed_();
        }
        if (!asleep) Say("paused steps=", steps_.load());
        if (!asleep) asleep_since = SteadyClock::now();
        asleep = true;
      }
    }
  }

  const Model& model_;
  const std::function<void()> failed_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> steps_{0};
  std::thread thread_;
};

class Worker {
 public:
  explicit Worker(const Flags& flags);

  void SayReady(double seconds) const;
  // Until told to end. 0, or 1 after a failure.
  int Run();

 private:
  void Obey(const std::string& command);
  void Verify();
  void SayKvCache();
  void SayAddresses();

  const SafetensorsFile file_;
  Session session_;
  const Model model_;
  KvCache kv_cache_;
  bool quit_ = false;
};

torpor_options Options(const Flags& flags) {
  torpor_options options = TORPOR_OPTIONS_INIT;
  const auto text = [](const std::string& value) {
    return value.empty() ? nullptr : value.c_str();
  };
  options.name = text(flags.name);
  options.runtime_dir = text(flags.runtime_dir);
  options.socket_path = text(flags.socket);
  options.driver = text(flags.driver);
  options.reservation = text(flags.reservation);
  options.quiesce = TORPOR_QUIESCE_GUARD;
  return options;
}

std::int64_t KvCacheSize(const Flags& flags, std::uint64_t weights) {
  if (flags.kv_cache > Bytes(0)) return RoundUp(flags.kv_cache, MiB(2)).value();
  const Bytes quarter(static_cast<std::int64_t>(weights / 4));
  return RoundUp(std::max(quarter, MiB(16)), MiB(2)).value();
}

Worker::Worker(const Flags& flags)
    : file_(flags.file),
      session_(Options(flags)),
      model_(session_, file_),
      kv_cache_(session_, KvCacheSize(flags, file_.data_size())) {
  kv_cache_.Fill(kPatience);
}

void Worker::SayReady(double seconds) const {
  Say("ready tensors=", file_.tensors().size(), " weights_bytes=", file_.data_size(),
      " weights_segments=", model_.segments().size(), " kv_bytes=", kv_cache_.size(),
      Seconds(seconds));
}

int Worker::Run() {
  const int failure = ::eventfd(0, EFD_CLOEXEC);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  const int signal = ::signalfd(-1, &signals, SFD_CLOEXEC);
  if (failure < 0 || signal < 0) {
    Say("error no descriptors: ", std::strerror(errno));
    return 1;
  }
  const Computation computation(model_, [failure] {
    const std::uint64_t one = 1;
    (void)!::write(failure, &one, sizeof one);
  });
  pollfd inputs[] = {{failure, POLLIN, 0}, {signal, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  std::string pending;
  while (!quit_) {
    if (::poll(inputs, 3, -1) < 0 && errno != EINTR) return 1;
    if (inputs[0].revents != 0) return 1;
    if (inputs[1].revents != 0) break;
    if (inputs[2].revents == 0) continue;
    char text[4096];
    const ssize_t count = ::read(STDIN_FILENO, text, sizeof text);
    if (count <= 0) {
      inputs[2].fd = -1;  // nobody commands it any more; it works on until a signal
      continue;
    }
    pending.append(text, static_cast<size_t>(count));
    for (size_t end; !quit_ && (end = pending.find('\n')) != std::string::npos;) {
      const std::string command = pending.substr(0, end);
      pending.erase(0, end + 1);
      if (command == "status") {
        Say("status steps=", computation.steps());
      } else {
        Obey(command);
      }
    }
  }
  return 0;
}

void Worker::Obey(const std::string& command) try {
  if (command == "verify") {
    Verify();
  } else if (command == "kv") {
    SayKvCache();
  } else if (command == "fill") {
    kv_cache_.Fill(kPatience);
    Say("fill ok bytes=", kv_cache_.size());
  } else if (command == "addresses") {
    SayAddresses();
  } else if (command == "quit") {
    quit_ = true;
  } else {
    Say("error unknown command: ", command, " (verify, kv, fill, addresses, status, quit)");
  }
} catch (const Error& error) {
  Say(command, " error ", error.what());
}

void Worker::Verify() {
  const auto start = SteadyClock::now();
  const Model::Comparison result = model_.Compare(kPatience);
  for (const std::string& difference : result.differences) {
    Say("different ", difference);
  }
  Say("verify ", result.differences.empty() ? "ok" : "failed", " tensors=", result.tensors,
      " bytes=", result.bytes, " crc32c=", Hex(result.crc32c), Seconds(SecondsSince(start)));
}

void Worker::SayKvCache() {
  const KvCache::Contents contents = kv_cache_.Check(kPatience);
  Say("kv ",
      contents == KvCache::Contents::kFilled ? "filled"
      : contents == KvCache::Contents::kZero ? "zero"
                                             : "other",
      " bytes=", kv_cache_.size());
}

void Worker::SayAddresses() {
  std::vector<void*> addresses = model_.segments();
  addresses.push_back(kv_cache_.address());
  std::uint32_t digest = 0;
  for (const void* address : addresses) {
    const torpor_segment_info segment = session_.Segment(address);
    Say("segment ", segment.tag, ' ', segment.address, " bytes=", segment.size);
    digest = Crc32c(digest, &segment.address, sizeof segment.address);
  }
  Say("addresses segments=", addresses.size(), " digest=", Hex(digest));
}

int Start(const Flags& flags) {
  // Before any thread starts, so that all inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  int status = 1;
  try {
    const auto start = SteadyClock::now();
    Worker worker(flags);
    worker.SayReady(SecondsSince(start));
    status = worker.Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "demo_worker: %s\n", error.what());
  }
  Say("end status=", status);
  return status;
}

int Main(const std::vector<std::string>& arguments) {
  Flags flags;
  bool help = false;
  bool version = false;
  FlagSet set;
  set.AddString("name", "NAME", "name of the worker, default demo", &flags.name);
  set.AddString("runtime_dir", "DIR", "the daemons' runtime directory, default as in torpor.h",
                &flags.runtime_dir);
  set.AddString("socket", "PATH", "worker socket of the daemon, default that of the device",
                &flags.socket);
  set.AddString("driver", "auto|cuda|host", "kind of device, default auto", &flags.driver);
  set.AddString("reservation", "ID", "reservation to draw on, default the free budget",
                &flags.reservation);
  set.AddBytes("kv_cache", "size of the KV cache, default a quarter of the weights, 16MiB or more",
               &flags.kv_cache);
  set.AddSwitch("help", "print this", &help);
  set.AddSwitch("version", "print the version", &version);
  const Result<std::vector<std::string>> files = set.Parse(arguments);
  if (files.ok() && version) {
    std::printf("demo_worker %s\n", torpor_version());
    return 0;
  }
  if (!files.ok() || help || files->size() != 1) {
    if (!files.ok()) std::fprintf(stderr, "demo_worker: %s\n", files.status().message().c_str());
    std::fprintf(help ? stdout : stderr,
                 "Usage: demo_worker [FLAGS] FILE.safetensors\n\n%s\n"
                 "Commands on standard input: verify, kv, fill, addresses, status, quit\n",
                 set.Help().c_str());
    return help ? 0 : 2;
  }
  flags.file = files->front();
  return Start(flags);
}

}  // namespace
}  // namespace torpor::demo

int main(int argc, char** argv) {
  return torpor::demo::Main(std::vector<std::string>(argv + 1, argv + argc));
}
