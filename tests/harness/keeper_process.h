#ifndef TORPOR_TESTS_HARNESS_KEEPER_PROCESS_H_
#define TORPOR_TESTS_HARNESS_KEEPER_PROCESS_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/harness/child_process.h"
#include "tests/harness/daemon_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {

// The real torpor-keeper, and the real torpord that it starts on the host driver, in a runtime
// directory that the test gives them. Not thread-safe.
class KeeperProcess {
 public:
  static constexpr char kDevice[] = "host-0";

  // `flags` of the daemon, after --driver=host and --runtime_dir; `program`: another build of it.
  // Nothing runs yet.
  KeeperProcess(std::string runtime_dir, std::vector<std::string> flags,
                std::string program = DaemonProcess::kProgram)
      : runtime_dir_(std::move(runtime_dir)),
        flags_(std::move(flags)),
        program_(std::move(program)) {}
  // Kills both.
  ~KeeperProcess();
  KeeperProcess(const KeeperProcess&) = delete;
  KeeperProcess& operator=(const KeeperProcess&) = delete;

  // Starts a keeper: the first one, or another one after KillKeeper. The daemon serves on return.
  Status Start(const std::map<std::string, std::string>& environment = {});
  // SIGKILL; gone on return.
  void KillKeeper();
  void SignalKeeper(int signal) { process_->Signal(signal); }
  void KillDaemon();
  void SignalDaemon(int signal);
  // SIGTERM to the keeper; its exit status.
  Result<int> Stop();

  // Until another daemon than `before` serves; its process.
  Result<pid_t> AwaitDaemon(pid_t before) const;
  // Until Usage satisfies `condition`; the last answer.
  template <typename Condition>
  Result<v1::UsageResponse> AwaitUsage(Condition condition) const {
    const TimePoint until = Clock::Real().Now() + kPatience;
    for (;;) {
      Result<v1::UsageResponse> usage = Usage();
      if (usage.ok() && condition(*usage)) return usage;
      if (Clock::Real().Now() > until) {
        return DeadlineExceeded("NOT_SO",
                                usage.ok() ? usage->ShortDebugString() : usage.status().ToString());
      }
      Pause();
    }
  }
  // By a connection of its own.
  Result<v1::UsageResponse> Usage() const;
  // The process that serves; UNAVAILABLE if none does.
  Result<pid_t> daemon() const;

  std::string control_socket() const { return runtime_dir_ + "/" + kDevice + "/control.sock"; }
  std::string worker_socket() const { return runtime_dir_ + "/" + kDevice + "/worker.sock"; }
  std::string keeper_socket() const { return runtime_dir_ + "/keeper.sock"; }
  std::string journal() const { return runtime_dir_ + "/journal"; }
  std::string log() const { return ReadFile(runtime_dir_ + "/keeper.log"); }
  std::unique_ptr<v1::MemoryService::Stub> NewStub() const;

 private:
  static void Pause();

  const std::string runtime_dir_;
  const std::vector<std::string> flags_;
  const std::string program_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_KEEPER_PROCESS_H_
