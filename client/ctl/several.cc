#include "client/ctl/several.h"

#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "client/ctl/print.h"
#include "client/ctl/progress_bars.h"
#include "client/ctl/reach.h"
#include "client/ctl/stop_signal.h"

namespace torpor::ctl {
namespace {

using Stub = v1::MemoryService::Stub;

template <typename Request, typename Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

// The call to one daemon.
template <typename Response>
struct Call {
  grpc::ClientContext context;
  std::string target;
  std::unique_ptr<Stub> stub;  // on a channel that connects anew by itself
  Answer<Response> answer;
};

std::string JsonString(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  return PrintJsonLine(value);
}

bool Replayed(const v1::UsageResponse&) { return false; }
template <typename Response>
bool Replayed(const Response& response) {
  return response.replayed();
}

std::string Show(const std::string& heading, const std::vector<Answer<v1::UsageResponse>>& all) {
  return PrintSeveral(heading, all, std::chrono::system_clock::now());
}
template <typename Response>
std::string Show(const std::string& heading, const std::vector<Answer<Response>>& all) {
  return PrintSeveral(heading, all);
}

// Calls all daemons that run, each on a thread of its own. Whether a signal came.
template <typename Request, typename Response>
bool CallAll(const Command& command, const std::vector<Daemon>& daemons,
             Method<Request, Response> method, const Request& request, const v1::Selector* selector,
             std::deque<Call<Response>>& calls) {
  for (const Daemon& daemon : daemons) {
    Call<Response>& call = calls.emplace_back();
    call.answer.daemon = daemon.name;
    call.answer.status = ToRpcStatus(daemon.status);
    SetTimeout(call.context, command.timeout);
    call.target = daemon.target;
    if (daemon.status.ok()) call.stub = Connect(daemon.target);
  }
  std::vector<ProgressBars::Source> sources;
  for (Call<Response>& call : calls) {
    if (call.stub != nullptr) sources.emplace_back(call.answer.daemon, call.stub.get());
  }
  std::optional<ProgressBars> progress;
  if (selector != nullptr) progress.emplace(sources, *selector);
  const StopOnSignal signal([&] {
    for (Call<Response>& call : calls) call.context.TryCancel();
  });
  std::vector<std::thread> threads;
  for (Call<Response>& call : calls) {
    if (call.stub == nullptr) continue;
    threads.emplace_back([&] {
      const auto channel = Reach(call.target, command.timeout, [&] { return signal.stopped(); });
      const grpc::Status status =
          channel.ok() ? (Stub(*channel).*method)(&call.context, request, &call.answer.response)
                       : ToGrpcStatus(channel.status());
      if (status.ok()) return;
      call.answer.response.Clear();
      call.answer.status = ToRpcStatus(status, call.target);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return signal.stopped();
}

template <typename Response>
void PrintAnswers(const std::vector<Daemon>& daemons, const std::vector<Answer<Response>>& answers,
                  bool json) {
  if (json) {
    std::vector<std::string> items;
    for (size_t i = 0; i < answers.size(); ++i) {
      const bool ok = answers[i].status.code() == 0;
      items.push_back(
          JsonOf(daemons[i], ok ? "response" : "error",
                 ok ? PrintJsonLine(answers[i].response) : PrintJsonLine(answers[i].status)));
    }
    std::fputs(JsonArray(items).c_str(), stdout);
    return;
  }
  std::fputs(Show(HeadingOf(daemons), answers).c_str(), stdout);
  std::fflush(stdout);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].status.code() != 0) PrintFailureOf(daemons[i], answers[i].status);
    if (!Replayed(answers[i].response)) continue;
    std::fprintf(stderr, "torporctl: %s: the answer to an earlier call with this request id\n",
                 daemons[i].name.c_str());
  }
}

template <typename Request, typename Response>
ExitStatus Run(const Command& command, const std::vector<Daemon>& daemons,
               Method<Request, Response> method, const Request& request,
               const v1::Selector* selector) {
  std::deque<Call<Response>> calls;
  const bool stopped = CallAll(command, daemons, method, request, selector, calls);
  if (stopped) UnblockStopSignals();
  std::vector<Answer<Response>> answers;
  answers.reserve(calls.size());
  for (Call<Response>& call : calls) answers.push_back(std::move(call.answer));
  PrintAnswers(daemons, answers, command.json);
  for (size_t i = 0; stopped && !command.json && selector != nullptr && i < calls.size(); ++i) {
    if (calls[i].stub == nullptr || answers[i].status.code() != grpc::StatusCode::CANCELLED) {
      continue;
    }
    TellWhatBecameOf(*calls[i].stub, *selector);
  }
  const auto failed = [](const Answer<Response>& answer) { return answer.status.code() != 0; };
  if (std::all_of(answers.begin(), answers.end(), failed)) return kFailed;
  const bool all_done =
      std::none_of(answers.begin(), answers.end(), [&](const Answer<Response>& answer) {
        return failed(answer) || SomeFailed(answer.response);
      });
  return all_done ? kDone : kPartlyDone;
}

}  // namespace

std::string HeadingOf(const std::vector<Daemon>& daemons) {
  return daemons.front().device.empty() ? "TARGET" : "DEVICE";
}

std::string JsonOf(const Daemon& daemon, const std::string& key, const std::string& value) {
  return "{\"device\": " + JsonString(daemon.device) +
         ", \"target\": " + JsonString(daemon.target) + ", \"" + key + "\": " + value + "}";
}

std::string JsonArray(const std::vector<std::string>& items) {
  std::string all;
  for (const std::string& item : items) all.append(all.empty() ? "[\n" : ",\n").append(item);
  return all + "\n]\n";
}

void PrintFailureOf(const Daemon& daemon, const google::rpc::Status& status) {
  std::fputs(("torporctl: " + daemon.name + ": " + PrintError(status)).c_str(), stderr);
}

ExitStatus RunOnSeveral(const Command& command, const std::vector<Daemon>& daemons) {
  if (command.verb == Verb::kSleep) {
    return Run(command, daemons, &Stub::Sleep, command.sleep, &command.sleep.selector());
  }
  if (command.verb == Verb::kWake) {
    return Run(command, daemons, &Stub::WakeUp, command.wake, &command.wake.selector());
  }
  return Run(command, daemons, &Stub::Usage, v1::UsageRequest(), nullptr);
}

}  // namespace torpor::ctl
