#ifndef TORPOR_TESTS_HARNESS_DAEMON_PROCESS_H_
#define TORPOR_TESTS_HARNESS_DAEMON_PROCESS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "tests/harness/child_process.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {

// The real torpord on the host driver, in a runtime directory that the test gives it. Not
// thread-safe, except for stub().
class DaemonProcess {
 public:
  static constexpr char kDevice[] = "host-0";  // unless a flag --device= says otherwise

  static constexpr char kProgram[] = "daemon/torpord";  // in the runfiles
  // The program, for runs that are to fail; arguments follow.
  static std::vector<std::string> Command(const std::string& runtime_dir,
                                          const std::vector<std::string>& flags = {},
                                          const std::string& program = kProgram);
  // Serves on return. `flags` come after --driver=host and --runtime_dir. `launcher`: a program and
  // arguments that are to run the command which follows them.
  static Result<std::unique_ptr<DaemonProcess>> Start(
      const std::string& runtime_dir, const std::vector<std::string>& flags = {},
      const std::vector<std::string>& launcher = {});

  ChildProcess& process() { return *process_; }
  // The line it printed when it began to serve.
  const std::string& greeting() const { return greeting_; }
  std::string log() const { return ReadFile(log_path_); }

  std::string control_socket() const { return runtime_dir_ + "/" + device_ + "/control.sock"; }
  std::string worker_socket() const { return runtime_dir_ + "/" + device_ + "/worker.sock"; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::MemoryService::Stub& stub() const { return *stub_; }

  Result<v1::UsageResponse> Usage() const;
  // SIGTERM; the exit status.
  Result<int> Stop();

 private:
  DaemonProcess() = default;
  std::string runtime_dir_;
  std::string device_ = kDevice;
  std::string log_path_;
  std::string greeting_;
  std::unique_ptr<ChildProcess> process_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

// The reason in a status' details; empty without one.
std::string ReasonOf(const grpc::Status& status);
// A detail's value; empty without one.
std::string DetailOf(const grpc::Status& status, const std::string& key);

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_DAEMON_PROCESS_H_
