#include "client/ctl/health.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "client/ctl/print.h"
#include "client/ctl/reach.h"
#include "client/ctl/several.h"
#include "client/ctl/stop_signal.h"
#include "client/ctl/table.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace torpor::ctl {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// What one daemon says of itself.
struct Check {
  const Daemon* daemon = nullptr;
  grpc::ClientContext context;
  grpc::ClientContext reason_context;
  google::rpc::Status status;  // not OK: it does not answer
  HealthCheckResponse response;
  google::rpc::Status reason;  // why it does not serve

  bool serves() const {
    return status.code() == 0 && response.status() == HealthCheckResponse::SERVING;
  }
};

void Ask(const Command& command, const StopOnSignal& signal, Check& check) {
  const std::string& service = command.service;
  const std::string& target = check.daemon->target;
  const auto channel = Reach(target, command.timeout, [&] { return signal.stopped(); });
  if (!channel.ok()) {
    check.status = ToRpcStatus(channel.status());
    return;
  }
  HealthCheckRequest request;
  request.set_service(service);
  const grpc::Status status =
      Health::NewStub(*channel)->Check(&check.context, request, &check.response);
  check.status = ToRpcStatus(status, target);
  if (!status.ok() || check.serves()) return;
  v1::UsageResponse usage;
  const grpc::Status told =
      v1::MemoryService::NewStub(*channel)->Usage(&check.reason_context, {}, &usage);
  if (!told.ok()) {
    check.reason = ToRpcStatus(told, target);
  } else {
    check.reason = service == "torpor.keeper" ? usage.protection() : usage.health();
  }
}

std::string Word(const Check& check) {
  if (check.status.code() != 0) return "-";
  return HealthCheckResponse::ServingStatus_Name(check.response.status());
}

// On one line.
std::string Why(const Check& check) {
  const google::rpc::Status& status = check.status.code() != 0 ? check.status : check.reason;
  return status.code() == 0 ? "" : ReasonOf(status) + ": " + status.message();
}

void PrintOne(const Check& check, bool json) {
  if (check.status.code() != 0) return PrintFailure(check.status, json);
  if (json) {
    std::fputs(PrintJson(check.response).c_str(), stdout);
    return;
  }
  const std::string why = Why(check);
  std::printf("%s%s%s\n", Word(check).c_str(), why.empty() ? "" : " ", why.c_str());
}

void PrintAll(const std::deque<Check>& checks, const std::vector<Daemon>& daemons, bool json) {
  if (json) {
    std::vector<std::string> items;
    for (const Check& check : checks) {
      const bool ok = check.status.code() == 0;
      items.push_back(JsonOf(*check.daemon, ok ? "response" : "error",
                             ok ? PrintJsonLine(check.response) : PrintJsonLine(check.status)));
    }
    std::fputs(JsonArray(items).c_str(), stdout);
    return;
  }
  Table table({HeadingOf(daemons), "HEALTH", "WHY NOT"});
  for (const Check& check : checks) table.AddRow({check.daemon->name, Word(check), Why(check)});
  std::fputs(table.ToString().c_str(), stdout);
}

}  // namespace

ExitStatus RunHealth(const Command& command, const std::vector<Daemon>& daemons) {
  std::deque<Check> checks;
  for (const Daemon& daemon : daemons) {
    Check& check = checks.emplace_back();
    check.daemon = &daemon;
    check.status = ToRpcStatus(daemon.status);
    SetTimeout(check.context, command.timeout);
    SetTimeout(check.reason_context, command.timeout);
  }
  {
    const StopOnSignal signal([&] {
      for (Check& check : checks) {
        check.context.TryCancel();
        check.reason_context.TryCancel();
      }
    });
    std::vector<std::thread> threads;
    for (Check& check : checks) {
      if (check.status.code() != 0) continue;
      threads.emplace_back([&] { Ask(command, signal, check); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  if (AsksSeveral(command)) {
    PrintAll(checks, daemons, command.json);
  } else {
    PrintOne(checks.front(), command.json);
  }
  const auto healthy = std::count_if(checks.begin(), checks.end(),
                                     [](const Check& check) { return check.serves(); });
  if (healthy == 0) return kFailed;
  return static_cast<size_t>(healthy) == checks.size() ? kDone : kPartlyDone;
}

}  // namespace torpor::ctl
