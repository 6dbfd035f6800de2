// torporctl: the control plane of torpord on a command line.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "client/ctl/command.h"
#include "client/ctl/print.h"
#include "client/ctl/watch.h"
#include "client/discovery.h"
#include "google/rpc/status.pb.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
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
    TORPOR_ASSIGN_OR_RETURN(runtime_dir, client::DefaultRuntimeDir());
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
  if (command.verb == Verb::kWatch) BlockStopSignals();
  const auto stub =
      v1::MemoryService::NewStub(grpc::CreateChannel(*target, grpc::InsecureChannelCredentials()));
  if (command.verb == Verb::kWatch) {
    const grpc::Status status = RunWatch(*stub, command);
    return status.ok() ? kDone : Fail(command, status);
  }
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::system_clock::duration>(command.timeout));
  const auto print = [&](const google::protobuf::Message& message, const std::string& text) {
    std::fputs(command.json ? PrintJson(message).c_str() : text.c_str(), stdout);
  };
  const auto now = std::chrono::system_clock::now;
  switch (command.verb) {
    case Verb::kUsage: {
      v1::UsageResponse response;
      const grpc::Status status = stub->Usage(&context, {}, &response);
      if (!status.ok()) return Fail(command, status);
      print(response, Print(response, now()));
      return kDone;
    }
    case Verb::kSleep: {
      v1::SleepResponse response;
      const grpc::Status status = [&] {
        const ProgressLine progress(*stub, command.sleep.selector());
        return stub->Sleep(&context, command.sleep, &response);
      }();
      if (!status.ok()) return Fail(command, status);
      print(response, Print(response));
      return SomeFailed(response) ? kPartlyDone : kDone;
    }
    case Verb::kWake: {
      v1::WakeUpResponse response;
      const grpc::Status status = [&] {
        const ProgressLine progress(*stub, command.wake.selector());
        return stub->WakeUp(&context, command.wake, &response);
      }();
      if (!status.ok()) return Fail(command, status);
      print(response, Print(response));
      return SomeFailed(response) ? kPartlyDone : kDone;
    }
    case Verb::kReserve: {
      v1::ReserveResponse response;
      const grpc::Status status = stub->Reserve(&context, command.reserve, &response);
      if (!status.ok()) return Fail(command, status);
      print(response, Print(response, now()));
      return kDone;
    }
    case Verb::kRenew: {
      v1::RenewResponse response;
      const grpc::Status status = stub->Renew(&context, command.renew, &response);
      if (!status.ok()) return Fail(command, status);
      print(response, Print(response, now()));
      return kDone;
    }
    case Verb::kRelease: {
      v1::ReleaseResponse response;
      const grpc::Status status = stub->Release(&context, command.release, &response);
      if (!status.ok()) return Fail(command, status);
      print(response, Print(response));
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
