// torporctl: the control plane of torpord on a command line.

#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/credentials.h"
#include "client/ctl/doctor/doctor.h"
#include "client/ctl/print.h"
#include "client/ctl/several.h"
#include "client/ctl/stop_signal.h"
#include "client/ctl/watch.h"
#include "client/discovery.h"
#include "google/rpc/status.pb.h"
#include "lib/base/runtime_dir.h"
#include "lib/base/status.h"
#include "lib/cli/version.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {
namespace {

// gRPC's name of the control socket beside a worker socket.
std::string ControlTarget(const std::string& worker_socket) {
  return "unix:" + worker_socket.substr(0, worker_socket.rfind('/')) + "/control.sock";
}

// gRPC's names of the daemons to ask, at least one.
Result<std::vector<std::string>> FindTargets(const Command& command) {
  if (!command.targets.empty()) return command.targets;
  std::string runtime_dir = command.runtime_dir;
  if (runtime_dir.empty()) {
    TORPOR_ASSIGN_OR_RETURN(runtime_dir, DefaultRuntimeDir());
  }
  std::vector<std::string> targets;
  if (command.all_devices) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> sockets,
                            client::FindWorkerSockets(runtime_dir));
    for (const std::string& socket : sockets) targets.push_back(ControlTarget(socket));
    return targets;
  }
  for (const std::string& device :
       command.devices.empty() ? std::vector<std::string>{""} : command.devices) {
    TORPOR_ASSIGN_OR_RETURN(const std::string socket,
                            client::FindWorkerSocket(runtime_dir, device));
    targets.push_back(ControlTarget(socket));
  }
  return targets;
}

int Fail(const Command& command, const grpc::Status& status) {
  const google::rpc::Status rpc = ToRpcStatus(status);
  if (command.json) {
    std::fputs(PrintJson(rpc).c_str(), stderr);
  } else {
    std::fputs(("torporctl: " + PrintError(rpc)).c_str(), stderr);
  }
  return kFailed;
}

// One command's call to the daemon.
class Caller {
 public:
  Caller(const Command& command, v1::MemoryService::Stub& stub) : command_(command), stub_(stub) {}

  // Calls, and prints what comes of it. A signal cancels the call. `wait`: for a daemon that is not
  // there yet. Who calls again and again instead finds it late: without a call that waits nothing
  // drives the connection on, for up to 5 s.
  template <typename Method, typename Request, typename Response>
  bool Call(Method method, const Request& request, Response& response,
            std::optional<Duration> wait = std::nullopt) {
    grpc::ClientContext context;
    SetTimeout(context, wait.value_or(command_.timeout));
    context.set_wait_for_ready(wait.has_value());
    const StopOnSignal signal([&] { context.TryCancel(); });
    status_ = (stub_.*method)(&context, request, &response);
    stopped_ = signal.stopped() && status_.error_code() == grpc::StatusCode::CANCELLED;
    asked_to_stop_ |= signal.stopped();
    return status_.ok();
  }
  // A signal came during this or an earlier call.
  bool asked_to_stop() const { return asked_to_stop_; }
  // The call failed for want of a daemon. One that is stopping cancels what comes too late.
  bool Unavailable() const {
    return !stopped_ && (status_.error_code() == grpc::StatusCode::UNAVAILABLE ||
                         status_.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                         status_.error_code() == grpc::StatusCode::CANCELLED);
  }
  // The exit status of a call that failed.
  int Failed(const v1::Selector* selector = nullptr) {
    if (stopped_ && !command_.json) {
      UnblockStopSignals();
      std::fputs("torporctl: cancelled\n", stderr);
      if (selector != nullptr) TellWhatBecameOf(stub_, *selector);
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
  const Command& command_;
  v1::MemoryService::Stub& stub_;
  grpc::Status status_;
  bool stopped_ = false;
  bool asked_to_stop_ = false;
};

// Ends the daemon in favour of one that its keeper starts, and waits until that one serves and has
// everyone back.
int Upgrade(Caller& caller) {
  using Stub = v1::MemoryService::Stub;
  v1::UpgradeResponse ended;
  if (!caller.Call(&Stub::Upgrade, v1::UpgradeRequest(), ended)) return caller.Failed();
  const auto since = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 since);
  };
  v1::UsageResponse usage;
  const auto is_next = [&] {
    if (google::protobuf::util::MessageDifferencer::Equals(usage.start_time(), ended.start_time()))
      return false;
    return std::none_of(usage.workers().begin(), usage.workers().end(),
                        [](const v1::WorkerUsage& worker) { return worker.awaited(); });
  };
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (caller.Call(&Stub::Usage, v1::UsageRequest(), usage, seconds(1))) {
      if (is_next()) break;
    } else if (!caller.Unavailable()) {
      return caller.Failed();
    }
    if (caller.asked_to_stop()) {
      std::fputs("torporctl: not waited for: the daemon is on its way\n", stderr);
      return kFailed;
    }
    if (passed() > std::chrono::minutes(2)) {
      std::fputs("torporctl: no daemon serves with all its workers back\n", stderr);
      return kFailed;
    }
  }
  caller.Print(usage, "From " + ended.version() + " to " + usage.version() + " in " +
                          std::to_string(passed().count()) + " ms, " +
                          std::to_string(usage.workers_size()) + " workers back.\n");
  return kDone;
}

int Run(const Command& command) {
  if (command.verb == Verb::kHelp) {
    std::fputs(CommandHelp().c_str(), stdout);
    return kDone;
  }
  if (command.verb == Verb::kVersion) {
    std::printf("torporctl %s\n", Version());
    return kDone;
  }
  if (command.verb == Verb::kDoctor) {
    const std::string device = command.devices.empty() ? "" : command.devices.front();
    return doctor::Examine({command.runtime_dir, device, command.json, command.timeout}) ? kDone
                                                                                         : kFailed;
  }
  if (const Status tls = UseTls(command.tls); !tls.ok()) {
    std::fprintf(stderr, "torporctl: %s\n", tls.ToString().c_str());
    return kBadCommandLine;
  }
  const Result<std::vector<std::string>> targets = FindTargets(command);
  if (!targets.ok()) {
    std::fprintf(stderr, "torporctl: %s\n", targets.status().ToString().c_str());
    return kFailed;
  }
  BlockStopSignals();
  if (AsksSeveral(command)) return RunOnSeveral(command, *targets);
  const auto stub = Connect(targets->front());
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
    case Verb::kUpgrade:
      return Upgrade(caller);
    case Verb::kHelp:
    case Verb::kVersion:
    case Verb::kWatch:
    case Verb::kDoctor:
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
