#include "tests/harness/daemon_process.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace torpor {
namespace {

google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
  google::rpc::Status rpc;
  google::rpc::ErrorInfo info;
  if (rpc.ParseFromString(status.error_details())) {
    for (const auto& detail : rpc.details()) {
      if (detail.UnpackTo(&info)) break;
    }
  }
  return info;
}

}  // namespace

std::vector<std::string> DaemonProcess::Command(const std::string& runtime_dir,
                                                const std::vector<std::string>& flags,
                                                const std::string& program) {
  std::vector<std::string> command = {std::filesystem::absolute(program), "--driver=host",
                                      "--runtime_dir=" + runtime_dir};
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

Result<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(
    const std::string& runtime_dir, const std::vector<std::string>& flags,
    const std::vector<std::string>& launcher) {
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess());
  daemon->runtime_dir_ = runtime_dir;
  const std::string device_flag = "--device=";
  for (const std::string& flag : flags) {
    if (flag.rfind(device_flag, 0) == 0) daemon->device_ = flag.substr(device_flag.size());
  }
  daemon->log_path_ = runtime_dir + "/" + daemon->device_ + ".log";
  ChildProcess::Options options;
  options.command = Command(runtime_dir, flags);
  options.command.insert(options.command.begin(), launcher.begin(), launcher.end());
  options.error_file = daemon->log_path_;
  TORPOR_ASSIGN_OR_RETURN(daemon->process_, ChildProcess::Start(options));
  const Result<std::string> greeting = daemon->process_->ReadLine();
  if (!greeting.ok()) {
    return Unavailable("DAEMON_DID_NOT_START", greeting.status().message() + "\n" + daemon->log());
  }
  daemon->greeting_ = *greeting;
  // Each daemon gets a connection of its own, also at the same path.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  daemon->channel_ = grpc::CreateCustomChannel("unix:" + daemon->control_socket(),
                                               grpc::InsecureChannelCredentials(), arguments);
  daemon->stub_ = v1::MemoryService::NewStub(daemon->channel_);
  return daemon;
}

Result<v1::UsageResponse> DaemonProcess::Usage() const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::UsageResponse response;
  const grpc::Status status = stub_->Usage(&context, {}, &response);
  if (status.ok()) return response;
  return Status(static_cast<Code>(status.error_code()), ReasonOf(status), status.error_message());
}

Result<int> DaemonProcess::Stop() {
  process_->Signal(SIGTERM);
  return process_->Wait();
}

std::string ReasonOf(const grpc::Status& status) { return InfoOf(status).reason(); }

std::string DetailOf(const grpc::Status& status, const std::string& key) {
  const google::rpc::ErrorInfo info = InfoOf(status);
  const auto found = info.metadata().find(key);
  return found == info.metadata().end() ? "" : found->second;
}

}  // namespace torpor
