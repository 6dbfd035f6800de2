#include "client/ctl/several.h"

#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <thread>

#include "client/ctl/print.h"
#include "client/ctl/stop_signal.h"

namespace torpor::ctl {
namespace {

using Stub = v1::MemoryService::Stub;

// One daemon, and what it answered.
struct Call {
  std::string target;
  std::unique_ptr<Stub> stub;
  grpc::ClientContext context;
  grpc::Status status;
  bool some_failed = false;
  bool replayed = false;
  std::string text;
  std::string json;  // one line
};

template <typename Request, typename Response>
bool Send(Call& call, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
          const Request& request, Response& response) {
  call.status = (call.stub.get()->*method)(&call.context, request, &response);
  if (call.status.ok()) call.json = PrintJsonLine(response);
  return call.status.ok();
}

template <typename Request, typename Response>
void Move(Call& call, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
          const Request& request) {
  Response response;
  if (!Send(call, method, request, response)) return;
  call.some_failed = SomeFailed(response);
  call.replayed = response.replayed();
  call.text = Print(response);
}

void Run(const Command& command, Call& call) {
  if (command.verb == Verb::kSleep) return Move(call, &Stub::Sleep, command.sleep);
  if (command.verb == Verb::kWake) return Move(call, &Stub::WakeUp, command.wake);
  v1::UsageResponse response;
  if (!Send(call, &Stub::Usage, v1::UsageRequest(), response)) return;
  call.text = Print(response, std::chrono::system_clock::now());
}

std::string JsonString(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  return PrintJsonLine(value);
}

void PrintCall(const Call& call, bool json) {
  if (json) {
    std::printf(
        "{\"target\": %s, \"%s\": %s}\n", JsonString(call.target).c_str(),
        call.status.ok() ? "answer" : "error",
        call.status.ok() ? call.json.c_str() : PrintJsonLine(ToRpcStatus(call.status)).c_str());
    return;
  }
  if (call.status.ok()) {
    std::printf("== %s\n%s", call.target.c_str(), call.text.c_str());
  } else {
    std::fprintf(stderr, "torporctl: %s: %s", call.target.c_str(),
                 PrintError(ToRpcStatus(call.status)).c_str());
  }
  if (call.replayed) {
    std::fprintf(stderr, "torporctl: %s: the answer to an earlier call with this request id\n",
                 call.target.c_str());
  }
}

}  // namespace

ExitStatus RunOnSeveral(const Command& command, const std::vector<std::string>& targets) {
  std::deque<Call> calls;
  for (const std::string& target : targets) {
    Call& call = calls.emplace_back();
    call.target = target;
    call.stub = Connect(target);
    SetTimeout(call.context, command.timeout);
  }
  bool stopped = false;
  {
    const StopOnSignal signal([&] {
      for (Call& call : calls) call.context.TryCancel();
    });
    std::vector<std::thread> threads;
    for (Call& call : calls) threads.emplace_back([&] { Run(command, call); });
    for (std::thread& thread : threads) thread.join();
    stopped = signal.stopped();
  }
  if (stopped) UnblockStopSignals();
  for (Call& call : calls) {
    PrintCall(call, command.json);
    const bool cancelled = call.status.error_code() == grpc::StatusCode::CANCELLED;
    if (!stopped || !cancelled || command.json || command.verb == Verb::kUsage) continue;
    TellWhatBecameOf(*call.stub, command.verb == Verb::kSleep ? command.sleep.selector()
                                                              : command.wake.selector());
  }
  const auto failed = [](const Call& call) { return !call.status.ok(); };
  if (std::all_of(calls.begin(), calls.end(), failed)) return kFailed;
  const bool all_done = std::none_of(calls.begin(), calls.end(), [&](const Call& call) {
    return failed(call) || call.some_failed;
  });
  return all_done ? kDone : kPartlyDone;
}

}  // namespace torpor::ctl
