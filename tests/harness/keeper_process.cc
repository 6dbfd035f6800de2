#include "tests/harness/keeper_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "lib/base/unique_fd.h"
#include "lib/net/unix_socket.h"

namespace torpor {
namespace {

void KillAndWait(pid_t pid) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  ::kill(pid, SIGKILL);
  ::kill(pid, SIGCONT);
  pollfd ended{process.get(), POLLIN, 0};
  if (process.valid()) ::poll(&ended, 1, 60000);
}

}  // namespace

KeeperProcess::~KeeperProcess() {
  // First the keeper, which would start another daemon.
  const auto last = daemon();
  process_.reset();
  const auto now = daemon();
  for (const auto& pid : {last, now}) {
    if (pid.ok()) KillAndWait(*pid);
  }
}

void KeeperProcess::Pause() { std::this_thread::sleep_for(milliseconds(5)); }

Status KeeperProcess::Start(const std::map<std::string, std::string>& environment) {
  const auto before = daemon();
  ChildProcess::Options options;
  options.command = {std::filesystem::absolute("daemon/keeper/torpor-keeper"),
                     "--socket=" + keeper_socket(), "--journal=" + journal(), "--"};
  for (std::string& word : DaemonProcess::Command(runtime_dir_, flags_, program_)) {
    options.command.push_back(std::move(word));
  }
  options.environment = environment;
  options.error_file = runtime_dir_ + "/keeper.log";
  TORPOR_ASSIGN_OR_RETURN(process_, ChildProcess::Start(options));
  if (before.ok()) return Status::Ok();
  return AwaitDaemon(0).status();
}

void KeeperProcess::KillKeeper() {
  process_->Signal(SIGKILL);
  (void)process_->Wait();
}

void KeeperProcess::KillDaemon() {
  if (const auto pid = daemon(); pid.ok()) KillAndWait(*pid);
}

void KeeperProcess::SignalDaemon(int signal) {
  if (const auto pid = daemon(); pid.ok()) ::kill(*pid, signal);
}

Result<int> KeeperProcess::Stop() {
  process_->Signal(SIGTERM);
  return process_->Wait();
}

Result<pid_t> KeeperProcess::daemon() const {
  TORPOR_ASSIGN_OR_RETURN(const UniqueFd socket, net::ConnectUnix(worker_socket()));
  TORPOR_ASSIGN_OR_RETURN(const net::PeerCredentials peer, net::GetPeerCredentials(socket.get()));
  return peer.pid;
}

Result<pid_t> KeeperProcess::AwaitDaemon(pid_t before) const {
  const TimePoint until = Clock::Real().Now() + kPatience;
  for (;;) {
    const auto pid = daemon();
    if (pid.ok() && *pid != before && Usage().ok()) return pid;
    if (Clock::Real().Now() > until) return DeadlineExceeded("NO_DAEMON", log());
    Pause();
  }
}

std::unique_ptr<v1::MemoryService::Stub> KeeperProcess::NewStub() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::MemoryService::NewStub(grpc::CreateCustomChannel(
      "unix:" + control_socket(), grpc::InsecureChannelCredentials(), arguments));
}

Result<v1::UsageResponse> KeeperProcess::Usage() const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::UsageResponse response;
  const grpc::Status status = NewStub()->Usage(&context, {}, &response);
  if (status.ok()) return response;
  return Status(static_cast<Code>(status.error_code()), ReasonOf(status), status.error_message());
}

}  // namespace torpor
