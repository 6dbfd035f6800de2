#include "client/ctl/watch.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "client/ctl/print.h"
#include "client/ctl/print_event.h"
#include "client/ctl/stop_signal.h"

namespace torpor::ctl {
namespace {

// How long a command waits for its progress line before it begins without.
constexpr Duration kPatience = milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

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
  // One that the daemon did not take is no advice.
  if (!cursor.empty() && status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) {
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
