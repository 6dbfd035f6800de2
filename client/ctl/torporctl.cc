// torporctl: the control plane of torpord on a command line.

#include <google/protobuf/util/message_differencer.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/ctl/call.h"
#include "client/ctl/command.h"
#include "client/ctl/completion.h"
#include "client/ctl/credentials.h"
#include "client/ctl/daemons.h"
#include "client/ctl/doctor/doctor.h"
#include "client/ctl/health.h"
#include "client/ctl/print.h"
#include "client/ctl/progress_bars.h"
#include "client/ctl/reach.h"
#include "client/ctl/several.h"
#include "client/ctl/stop_signal.h"
#include "client/ctl/top.h"
#include "client/ctl/watch.h"
#include "lib/base/status.h"
#include "lib/cli/version.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {
namespace {

// One command's call to the daemon.
class Caller {
 public:
  Caller(const Command& command, std::string target)
      : command_(command), target_(std::move(target)), stub_(Connect(target_)) {}

  // On a channel that connects anew by itself.
  v1::MemoryService::Stub& stub() const { return *stub_; }

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
    if (wait) {
      status_ = (stub_.get()->*method)(&context, request, &response);
    } else {
      const auto channel = Reach(target_, command_.timeout, [&] { return signal.stopped(); });
      status_ = channel.ok() ? (v1::MemoryService::NewStub(*channel).get()->*method)(
                                   &context, request, &response)
                             : ToGrpcStatus(channel.status());
    }
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
    if (stopped_) UnblockStopSignals();
    if (stopped_ && !command_.json) {
      std::fputs("torporctl: cancelled\n", stderr);
      if (selector != nullptr) TellWhatBecameOf(*stub_, *selector);
      return kFailed;
    }
    PrintFailure(ToRpcStatus(status_, target_), command_.json);
    return kFailed;
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
  const std::string target_;
  const std::unique_ptr<v1::MemoryService::Stub> stub_;
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
  if (command.verb == Verb::kCompletion) {
    std::fputs(CompletionScript(command.shell).c_str(), stdout);
    return kDone;
  }
  if (const Status tls = UseTls(command.tls); !tls.ok()) {
    PrintFailure(ToRpcStatus(tls), command.json);
    return kBadCommandLine;
  }
  const Result<std::vector<Daemon>> daemons = FindDaemons(command);
  if (!daemons.ok()) {
    PrintFailure(ToRpcStatus(daemons.status()), command.json);
    return kFailed;
  }
  BlockStopSignals();
  if (command.verb == Verb::kTop) return RunTop(command, *daemons);
  if (command.verb == Verb::kHealth) return RunHealth(command, *daemons);
  if (command.verb == Verb::kWatch) return RunWatch(command, *daemons);
  if (AsksSeveral(command)) return RunOnSeveral(command, *daemons);
  using Stub = v1::MemoryService::Stub;
  Caller caller(command, daemons->front().target);
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
        const ProgressBars progress({{"", &caller.stub()}}, command.sleep.selector());
        return caller.Call(&Stub::Sleep, command.sleep, response);
      }();
      if (!ok) return caller.Failed(&command.sleep.selector());
      caller.PrintOnce(response, Print(response));
      return SomeFailed(response) ? kPartlyDone : kDone;
    }
    case Verb::kWake: {
      v1::WakeUpResponse response;
      const bool ok = [&] {
        const ProgressBars progress({{"", &caller.stub()}}, command.wake.selector());
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
    case Verb::kHealth:
    case Verb::kTop:
    case Verb::kCompletion:
      break;
  }
  return kFailed;
}

// In the environment: how much gRPC logs.
constexpr char kGrpcVerbosity[] = "GRPC_VERBOSITY";

// gRPC's own log, unless it was asked for: what has failed is told once, by the command.
void SilenceGrpc() {
  if (std::getenv(kGrpcVerbosity) == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace
}  // namespace torpor::ctl

int main(int argc, char** argv) {
  torpor::ctl::SilenceGrpc();
  if (argc > 1 && argv[1] == std::string("__complete")) {
    const std::vector<std::string> words(argv + 2, argv + argc);
    for (const std::string& one : torpor::ctl::Complete(words, torpor::ctl::AskForNames(words))) {
      std::puts(one.c_str());
    }
    return torpor::ctl::kDone;
  }
  const auto command = torpor::ctl::ParseCommand({argv + 1, argv + argc});
  if (!command.ok()) {
    const bool json = std::find(argv + 1, argv + argc, std::string("--json")) != argv + argc;
    if (json) {
      torpor::ctl::PrintFailure(torpor::ctl::ToRpcStatus(command.status()), json);
    } else {
      std::fprintf(stderr, "torporctl: %s (--help tells more)\n",
                   command.status().message().c_str());
    }
    return torpor::ctl::kBadCommandLine;
  }
  return torpor::ctl::Run(*command);
}
