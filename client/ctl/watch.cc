#include "client/ctl/watch.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "client/ctl/print.h"
#include "client/ctl/print_event.h"
#include "client/ctl/reach.h"
#include "client/ctl/several.h"
#include "client/ctl/stop_signal.h"
#include "client/ctl/text_width.h"
#include "lib/base/mutex.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {
namespace {

// The watch of one daemon.
struct Stream {
  const Daemon* daemon = nullptr;
  grpc::ClientContext context;
  std::string cursor;
  bool begun = false;
  google::rpc::Status status;
};

class Watcher {
 public:
  Watcher(const Command& command, const std::vector<Daemon>& daemons)
      : command_(command), several_(AsksSeveral(command)) {
    for (const Daemon& daemon : daemons) {
      Stream& stream = streams_.emplace_back();
      stream.daemon = &daemon;
      width_ = std::max(width_, TextWidth(daemon.name));
      stream.status = ToRpcStatus(daemon.status);
      if (!daemon.status.ok()) continue;
      if (Bounded()) SetTimeout(stream.context, command.timeout);
    }
  }

  ExitStatus Run() {
    const StopOnSignal signal([&] {
      for (Stream& stream : streams_) stream.context.TryCancel();
    });
    std::vector<std::thread> threads;
    for (Stream& stream : streams_) {
      if (!stream.daemon->status.ok()) {
        Tell(stream);
      } else {
        threads.emplace_back([&] { Follow(stream, signal); });
      }
    }
    for (std::thread& thread : threads) thread.join();
    const auto failed = std::count_if(streams_.begin(), streams_.end(), [](const Stream& stream) {
      return stream.status.code() != 0;
    });
    if (failed == 0) return kDone;
    return static_cast<size_t>(failed) == streams_.size() ? kFailed : kPartlyDone;
  }

 private:
  bool Bounded() const { return command_.timeout != kNoTimeout; }

  void Follow(Stream& stream, const StopOnSignal& signal) {
    const auto channel =
        Reach(stream.daemon->target, command_.timeout, [&] { return signal.stopped(); });
    if (!channel.ok()) {
      stream.status = ToRpcStatus(channel.status());
      return Tell(stream);
    }
    v1::MemoryService::Stub stub(*channel);
    const auto reader = stub.Watch(&stream.context, command_.watch);
    v1::WatchResponse response;
    stream.cursor = command_.watch.cursor();
    while (reader->Read(&response)) {
      stream.begun = true;
      stream.cursor = response.cursor();
      Print(*stream.daemon, response);
    }
    const grpc::Status status = reader->Finish();
    // One that the daemon did not take is no advice; one of several is taken by no command, and
    // JSON has it in each response.
    if (!several_ && !command_.json && !stream.cursor.empty() &&
        status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) {
      std::fprintf(stderr, "torporctl: to go on from here: --cursor=%s\n", stream.cursor.c_str());
    }
    const bool over =
        Bounded() && stream.begun && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (signal.stopped() || over) return;
    // Without an error it would have gone on.
    const grpc::Status ended(grpc::StatusCode::UNAVAILABLE, "the daemon ended the stream");
    stream.status = ToRpcStatus(status.ok() ? ended : status, stream.daemon->target);
    Tell(stream);
  }

  void Print(const Daemon& daemon, const v1::WatchResponse& response) EXCLUDES(mutex_) {
    std::string line = command_.json ? PrintJsonLine(response) : PrintEvent(response);
    if (line.empty()) return;
    if (several_) {
      line = command_.json ? JsonOf(daemon, "response", line)
                           : FitText(daemon.name, width_) + "  " + line;
    }
    MutexLock lock(mutex_);
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
  }

  void Tell(const Stream& stream) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!several_) return PrintFailure(stream.status, command_.json);
    if (!command_.json) return PrintFailureOf(*stream.daemon, stream.status);
    const std::string line = JsonOf(*stream.daemon, "error", PrintJsonLine(stream.status));
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
  }

  const Command& command_;
  const bool several_;
  size_t width_ = 0;
  std::deque<Stream> streams_;
  Mutex mutex_;  // of the outputs
};

}  // namespace

ExitStatus RunWatch(const Command& command, const std::vector<Daemon>& daemons) {
  return Watcher(command, daemons).Run();
}

}  // namespace torpor::ctl
