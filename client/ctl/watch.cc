#include "client/ctl/watch.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "client/ctl/print.h"
#include "client/ctl/print_event.h"

namespace torpor::ctl {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  return signals;
}

// Calls `stop` at the first signal that asks to stop, while it lives.
class StopOnSignal {
 public:
  explicit StopOnSignal(std::function<void()> stop)
      : thread_([this, stop = std::move(stop)] {
          const sigset_t signals = StopSignals();
          const timespec pause{0, 50'000'000};
          while (!done_) {
            if (::sigtimedwait(&signals, nullptr, &pause) < 0) continue;
            stopped_ = true;
            stop();
            return;
          }
        }) {}
  ~StopOnSignal() {
    done_ = true;
    thread_.join();
  }
  bool stopped() const { return stopped_; }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

// How long a command waits for its progress line before it begins without.
constexpr Duration kPatience = milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

grpc::Status RunWatch(v1::MemoryService::Stub& stub, const Command& command) {
  grpc::ClientContext context;
  const bool bounded = command.timeout != kNoTimeout;
  if (bounded) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::system_clock::duration>(command.timeout));
  }
  std::string cursor = command.watch.cursor();
  const StopOnSignal signal([&] { context.TryCancel(); });
  const auto reader = stub.Watch(&context, command.watch);
  v1::WatchResponse response;
  bool begun = false;
  while (reader->Read(&response)) {
    begun = true;
    cursor = response.cursor();
    const std::string line = command.json ? PrintJsonLine(response) : PrintEvent(response);
    if (line.empty()) continue;
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
  }
  const grpc::Status status = reader->Finish();
  if (!cursor.empty()) {
    std::fprintf(stderr, "torporctl: to go on from here: --cursor=%s\n", cursor.c_str());
  }
  const bool over = bounded && begun && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return signal.stopped() || over ? grpc::Status::OK : status;
}

ProgressLine::ProgressLine(v1::MemoryService::Stub& stub, const v1::Selector& selector)
    : stub_(stub) {
  if (::isatty(STDERR_FILENO) == 0) return;
  v1::WatchRequest request;
  request.add_kinds(v1::EVENT_KIND_PROGRESS);
  request.add_kinds(v1::EVENT_KIND_OPERATION);
  *request.mutable_workers() = selector.workers();
  thread_ = std::thread([this, request] { Run(request); });
  const TimePoint until = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mutex_);
  while (!begun_ && std::chrono::steady_clock::now() < until) changed_.WaitUntil(mutex_, until);
}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  context_.TryCancel();
  thread_.join();
}

void ProgressLine::Run(const v1::WatchRequest& request) {
  const auto begun = [this] {
    MutexLock lock(mutex_);
    begun_ = true;
    changed_.NotifyAll();
  };
  const auto reader = stub_.Watch(&context_, request);
  ProgressText text;
  bool drawn = false;
  v1::WatchResponse response;
  while (reader->Read(&response)) {
    begun();
    text.Add(response);
    const std::string line = text.Line();
    if (line.empty() && !drawn) continue;
    std::fputs((kClearLine + line).c_str(), stderr);
    drawn = !line.empty();
  }
  (void)reader->Finish();
  begun();
  if (drawn) std::fputs(kClearLine, stderr);
}

}  // namespace torpor::ctl
