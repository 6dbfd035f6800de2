#include "client/ctl/call.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "client/ctl/credentials.h"
#include "client/ctl/print.h"
#include "google/rpc/error_details.pb.h"
#include "lib/base/units.h"

namespace torpor::ctl {
namespace {

bool UnderOperation(const v1::UsageResponse& usage) {
  return std::any_of(usage.workers().begin(), usage.workers().end(),
                     [](const v1::WorkerUsage& worker) { return !worker.operation_id().empty(); });
}

void KeepSelected(const v1::Selector& selector, v1::UsageResponse& usage) {
  const auto selected = [&](const v1::WorkerUsage& worker) {
    return std::any_of(
        selector.workers().begin(), selector.workers().end(),
        [&](const std::string& name) { return name == worker.id() || name == worker.name(); });
  };
  auto& workers = *usage.mutable_workers();
  workers.erase(std::remove_if(workers.begin(), workers.end(), std::not_fn(selected)),
                workers.end());
}

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments arguments;
  // For a daemon that is about to be there again.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also how long a daemon that is there, and busy, may take to answer a new connection.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  // Usage of a daemon with many workers and reservations.
  arguments.SetMaxReceiveMessageSize(static_cast<int>(MiB(64).value()));
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target) {
  grpc::ChannelArguments arguments = ChannelArguments();
  const auto credentials = CredentialsFor(target, arguments);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

std::shared_ptr<grpc::Channel> ChannelOn(UniqueFd connection) {
  return grpc::CreateCustomInsecureChannelFromFd("torpord", connection.Release(),
                                                 ChannelArguments());
}

std::unique_ptr<v1::MemoryService::Stub> Connect(const std::string& target) {
  return v1::MemoryService::NewStub(OpenChannel(target));
}

void SetTimeout(grpc::ClientContext& context, Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
}

google::rpc::Status ToRpcStatus(const grpc::Status& status, const std::string& target) {
  google::rpc::Status rpc;
  if (rpc.ParseFromString(status.error_details()) && rpc.code() != 0) return rpc;
  rpc.Clear();
  rpc.set_code(status.error_code());
  rpc.set_message(status.error_message());
  if (status.ok()) return rpc;
  google::rpc::ErrorInfo info;
  info.set_domain("torpor");
  info.set_reason("CALL_FAILED");
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    info.set_reason("DAEMON_UNREACHABLE");
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    info.set_reason("CALL_DEADLINE");
    rpc.set_message("the daemon has not answered in time");
  } else if (status.error_code() == grpc::StatusCode::CANCELLED) {
    info.set_reason("CALL_CANCELLED");
  }
  (*info.mutable_metadata())["target"] = target;
  rpc.add_details()->PackFrom(info);
  return rpc;
}

google::rpc::Status ToRpcStatus(const Status& status) {
  google::rpc::Status rpc;
  rpc.set_code(static_cast<int32_t>(status.code()));
  rpc.set_message(status.message());
  if (status.ok()) return rpc;
  google::rpc::ErrorInfo info;
  info.set_domain("torpor");
  info.set_reason(status.reason());
  for (const auto& [key, value] : status.details()) (*info.mutable_metadata())[key] = value;
  rpc.add_details()->PackFrom(info);
  return rpc;
}

grpc::Status ToGrpcStatus(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.message(),
          ToRpcStatus(status).SerializeAsString()};
}

void PrintFailure(const google::rpc::Status& status, bool json) {
  std::fputs((json ? PrintJson(status) : "torporctl: " + PrintError(status)).c_str(), stderr);
}

void TellWhatBecameOf(v1::MemoryService::Stub& stub, const v1::Selector& selector) {
  const auto until = std::chrono::steady_clock::now() + seconds(10);
  v1::UsageResponse usage;
  do {
    grpc::ClientContext context;
    SetTimeout(context, seconds(5));
    usage.Clear();
    if (!stub.Usage(&context, {}, &usage).ok()) return;
    if (!selector.workers().empty()) KeepSelected(selector, usage);
    usage.clear_reservations();
    usage.clear_queue();
    if (!UnderOperation(usage)) break;
    std::this_thread::sleep_for(milliseconds(20));
  } while (std::chrono::steady_clock::now() < until);
  std::fputs(Print(usage, std::chrono::system_clock::now()).c_str(), stderr);
}

}  // namespace torpor::ctl
