// torporctl: the control plane of torpord on a command line.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/ctl/command.h"
#include "client/ctl/print.h"
#include "client/ctl/stop_signal.h"
#include "client/ctl/watch.h"
#include "client/discovery.h"
#include "google/rpc/status.pb.h"
#include "lib/base/clock.h"
#include "lib/base/runtime_dir.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cli/version.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {
namespace {

// Documented in the help.
enum ExitStatus { kDone = 0, kFailed = 1, kBadCommandLine = 2, kPartlyDone = 3 };

// gRPC's name of the control socket.
Result<std::string> FindTarget(const Command& command) {
  if (!command.target.empty()) return command.target;
  std::string runtime_dir = command.runtime_dir;
  if (runtime_dir.empty()) {
    TORPOR_ASSIGN_OR_RETURN(runtime_dir, DefaultRuntimeDir());
  }
  TORPOR_ASSIGN_OR_RETURN(const std::string worker_socket,
                          client::FindWorkerSocket(runtime_dir, command.device));
  return "unix:" + worker_socket.substr(0, worker_socket.rfind('/')) + "/control.sock";
}

int Fail(const Command& command, const grpc::Status& status) {
  google::rpc::Status rpc;
  if (!rpc.ParseFromString(status.error_details()) || rpc.code() == 0) {
    rpc.Clear();
    rpc.set_code(status.error_code());
    rpc.set_message(status.error_message());
  }
  if (command.json) {
    std::fputs(PrintJson(rpc).c_str(), stderr);
  } else {
    std::fputs(("torporctl: " + PrintError(rpc)).c_str(), stderr);
  }
  return kFailed;
}

template <typename Response>
bool SomeFailed(const Response& response) {
  for (const v1::WorkerResult& result : response.workers()) {
    if (result.status().code() != 0) return true;
  }
  return false;
}

bool UnderOperation(const v1::UsageResponse& usage) {
  return std::any_of(usage.workers().begin(), usage.workers().end(),
                     [](const v1::WorkerUsage& worker) { return !worker.operation_id().empty(); });
}

// One command's call to the daemon.
class Caller {
 public:
  Caller(const Command& command, v1::MemoryService::Stub& stub) : command_(command), stub_(stub) {}

  // Calls, and prints what comes of it. A signal cancels the call.
  template <typename Method, typename Request, typename Response>
  bool Call(Method method, const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::system_clock::duration>(command_.timeout));
    const StopOnSignal signal([&] { context.TryCancel(); });
    status_ = (stub_.*method)(&context, request, &response);
    stopped_ = signal.stopped() && status_.error_code() == grpc::StatusCode::CANCELLED;
    return status_.ok();
  }
  // The exit status of a call that failed.
  int Failed(const v1::Selector* selector = nullptr) {
    if (stopped_ && !command_.json) {
      UnblockStopSignals();
      std::fputs("torporctl: cancelled\n", stderr);
      if (selector != nullptr) TellWhatBecameOf(*selector);
      return kFailed;
    }
    return Fail(command_, status_);
  }
  template <typename Response>
  void Print(const Response& response, const std::string& text) const {
    std::fputs(command_.json ? PrintJson(response).c_str() : text.c_str(), stdout);
  }
  // Of an answer that has the field.
  template <typename Response>
  void PrintOnce(const Response& response, const std::string& text) const {
    Print(response, text);
    if (response.replayed() && !command_.json) {
      std::fputs("torporctl: the answer to an earlier call with this request id\n", stderr);
    }
  }

 private:
  // Prints the selected workers as they are once nothing moves them.
  void TellWhatBecameOf(const v1::Selector& selector) {
    const auto until = std::chrono::steady_clock::now() + seconds(10);
    v1::UsageResponse usage;
    do {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + seconds(5));
      usage.Clear();
      if (!stub_.Usage(&context, {}, &usage).ok()) return;
      if (!selector.workers().empty()) KeepSelected(selector, usage);
      usage.clear_reservations();
      usage.clear_queue();
      if (!UnderOperation(usage)) break;
      std::this_thread::sleep_for(milliseconds(20));
    } while (std::chrono::steady_clock::now() < until);
    std::fputs(ctl::Print(usage, std::chrono::system_clock::now()).c_str(), stderr);
  }
  static void KeepSelected(const v1::Selector& selector, v1::UsageResponse& usage) {
    const auto selected = [&](const v1::WorkerUsage& worker) {
      return std::any_of(
          selector.workers().begin(), selector.workers().end(),
          [&](const std::string& name) { return name == worker.id() || name == worker.name(); });
    };
    auto& workers = *usage.mutable_workers();
    workers.erase(std::remove_if(workers.begin(), workers.end(), std::not_fn(selected)),
                  workers.end());
  }

  const Command& command_;
  v1::MemoryService::Stub& stub_;
  grpc::Status status_;
  bool stopped_ = false;
};

int Run(const Command& command) {
  if (command.verb == Verb::kHelp) {
    std::fputs(CommandHelp().c_str(), stdout);
    return kDone;
  }
  if (command.verb == Verb::kVersion) {
    std::printf("torporctl %s\n", Version());
    return kDone;
  }
  const Result<std::string> target = FindTarget(command);
  if (!target.ok()) {
    std::fprintf(stderr, "torporctl: %s\n", target.status().ToString().c_str());
    return kFailed;
  }
  BlockStopSignals();
  grpc::ChannelArguments arguments;
  // Usage of a daemon with many workers and reservations.
  arguments.SetMaxReceiveMessageSize(static_cast<int>(MiB(64).value()));
  const auto stub = v1::MemoryService::NewStub(
      grpc::CreateCustomChannel(*target, grpc::InsecureChannelCredentials(), arguments));
  if (command.verb == Verb::kWatch) {
    const grpc::Status status = RunWatch(*stub, command);
    return status.ok() ? kDone : Fail(command, status);
  }
  using Stub = v1::MemoryService::Stub;
  Caller caller(command, *stub);
  const auto now = std::chrono::system_clock::now;
  switch (command.verb) {
    case Verb::kUsage: {
      v1::UsageResponse response;
      if (!caller.Call(&Stub::Usage, v1::UsageRequest(), response)) return caller.Failed();
      caller.Print(response, Print(response, now()));
      return kDone;
    }
    case Verb::kSleep: {
      v1::SleepResponse response;
      const bool ok = [&] {
        const ProgressLine progress(*stub, command.sleep.selector());
        return caller.Call(&Stub::Sleep, command.sleep, response);
      }();
      if (!ok) return caller.Failed(&command.sleep.selector());
      caller.PrintOnce(response, Print(response));
      return SomeFailed(response) ? kPartlyDone : kDone;
    }
    case Verb::kWake: {
      v1::WakeUpResponse response;
      const bool ok = [&] {
        const ProgressLine progress(*stub, command.wake.selector());
        return caller.Call(&Stub::WakeUp, command.wake, response);
      }();
      if (!ok) return caller.Failed(&command.wake.selector());
      caller.PrintOnce(response, Print(response));
      return SomeFailed(response) ? kPartlyDone : kDone;
    }
    case Verb::kReserve: {
      v1::ReserveResponse response;
      if (!caller.Call(&Stub::Reserve, command.reserve, response)) return caller.Failed();
      caller.PrintOnce(response, Print(response, now()));
      return kDone;
    }
    case Verb::kRenew: {
      v1::RenewResponse response;
      if (!caller.Call(&Stub::Renew, command.renew, response)) return caller.Failed();
      caller.PrintOnce(response, Print(response, now()));
      return kDone;
    }
    case Verb::kRelease: {
      v1::ReleaseResponse response;
      if (!caller.Call(&Stub::Release, command.release, response)) return caller.Failed();
      caller.PrintOnce(response, Print(response));
      return kDone;
    }
    case Verb::kHelp:
    case Verb::kVersion:
    case Verb::kWatch:
      break;
  }
  return kFailed;
}

}  // namespace
}  // namespace torpor::ctl

int main(int argc, char** argv) {
  const auto command = torpor::ctl::ParseCommand({argv + 1, argv + argc});
  if (!command.ok()) {
    std::fprintf(stderr, "torporctl: %s (--help tells more)\n", command.status().message().c_str());
    return torpor::ctl::kBadCommandLine;
  }
  return torpor::ctl::Run(*command);
}
