#include "tests/bench/bench_daemon.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>
#include <utility>

namespace torpor::bench {
namespace {

constexpr auto kCallDeadline = std::chrono::minutes(3);
constexpr auto kPinDeadline = std::chrono::minutes(3);
// A pool that has not grown for so long does not pin any more.
constexpr auto kPinIdle = std::chrono::seconds(3);

Status Translate(const grpc::Status& status) {
  if (status.ok()) return Status::Ok();
  return Status(static_cast<Code>(status.error_code()), "CALL_FAILED", status.error_message());
}

double Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() / 1e6;
}

// Whatever phases the daemon tells apart.
Operation ToOperation(const v1::WorkerResult& result, double caller_ms) {
  Operation operation;
  operation.caller_ms = caller_ms;
  operation.device_bytes = result.device_bytes();
  operation.copied_bytes = result.copied_bytes();
  operation.discarded_bytes = result.discarded_bytes();
  const v1::Timing& timing = result.timing();
  const google::protobuf::Descriptor& type = *timing.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    if (field.message_type() != google::protobuf::Duration::descriptor() ||
        !timing.GetReflection()->HasField(timing, &field)) {
      continue;
    }
    const double ms = Milliseconds(static_cast<const google::protobuf::Duration&>(
        timing.GetReflection()->GetMessage(timing, &field)));
    (field.name() == "total" ? operation.total_ms : operation.phases_ms[field.name()]) = ms;
  }
  return operation;
}

// Sends `request` to one worker's memory, all there is.
template <typename Response, typename Request>
Result<Operation> TimeCall(v1::MemoryService::Stub& stub, Request request,
                           grpc::Status (v1::MemoryService::Stub::*method)(grpc::ClientContext*,
                                                                           const Request&,
                                                                           Response*)) {
  request.mutable_selector()->set_all(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  Response response;
  const TimePoint start = std::chrono::steady_clock::now();
  const grpc::Status status = (stub.*method)(&context, request, &response);
  const double taken = MillisecondsSince(start);
  TORPOR_RETURN_IF_ERROR(Translate(status));
  if (response.workers_size() != 1) return Internal("CALL_FAILED", "there is not one worker");
  const v1::WorkerResult& result = response.workers(0);
  if (result.status().code() != 0) return Internal("CALL_FAILED", result.status().message());
  return ToOperation(result, taken);
}

}  // namespace

double MillisecondsSince(TimePoint start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

Status LookAtTorpord(DaemonOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const Finished help, RunProgram({options.torpord, "--help"}));
  if (help.exit_status != 0) return NotFound("NO_TORPORD", "cannot run " + options.torpord);
  options.knows_pin_pool = help.output.find("pin_pool") != std::string::npos ||
                           help.output.find("pin-pool") != std::string::npos;
  return Status::Ok();
}

Result<std::unique_ptr<BenchDaemon>> BenchDaemon::Start(const DaemonOptions& options,
                                                        Bytes host_pool, Bytes host_device_memory,
                                                        const std::string& pin_pool) {
  std::unique_ptr<BenchDaemon> daemon(new BenchDaemon());
  ChildProcess::Options process;
  process.command = {options.torpord, "--driver=" + options.driver,
                     "--runtime_dir=" + daemon->dir_.path(),
                     "--host_pool=" + std::to_string(host_pool.value())};
  if (options.knows_pin_pool) process.command.push_back("--pin_pool=" + pin_pool);
  if (options.driver == "host") {
    process.command.push_back("--host_granularity=64KiB");
    process.command.push_back("--safety_reserve=0");
    process.command.push_back("--host_device_memory=" + std::to_string(host_device_memory.value()));
  }
  process.command.insert(process.command.end(), options.more_flags.begin(),
                         options.more_flags.end());
  process.error_file = options.log;
  TORPOR_ASSIGN_OR_RETURN(daemon->process_, ChildProcess::Start(process));
  TORPOR_ASSIGN_OR_RETURN(const std::string greeting, daemon->process_->ReadLine());
  // "torpord ... at CONTROL and WORKER[, LISTEN]"
  const size_t at = greeting.rfind(" at ");
  const size_t between = greeting.find(" and ", at == std::string::npos ? 0 : at);
  if (at == std::string::npos || between == std::string::npos) {
    return Internal("BAD_GREETING", "torpord says: " + greeting);
  }
  const std::string control = greeting.substr(at + 4, between - at - 4);
  daemon->worker_socket_ = greeting.substr(between + 5);
  daemon->worker_socket_.resize(
      std::min(daemon->worker_socket_.size(), daemon->worker_socket_.find(',')));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  daemon->stub_ = v1::MemoryService::NewStub(
      grpc::CreateCustomChannel("unix:" + control, grpc::InsecureChannelCredentials(), arguments));
  TORPOR_RETURN_IF_ERROR(daemon->Usage().status());
  return daemon;
}

Result<v1::UsageResponse> BenchDaemon::Usage() const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  v1::UsageResponse response;
  TORPOR_RETURN_IF_ERROR(Translate(stub_->Usage(&context, {}, &response)));
  return response;
}

Result<BenchDaemon::Pinned> BenchDaemon::WaitUntilPinned(Bytes bytes) const {
  const TimePoint start = std::chrono::steady_clock::now();
  TimePoint grown = start;
  int64_t pinned = -1;
  for (;;) {
    TORPOR_ASSIGN_OR_RETURN(const v1::UsageResponse usage, Usage());
    const TimePoint now = std::chrono::steady_clock::now();
    if (usage.host_pool().pinned_bytes() != pinned) grown = now;
    pinned = usage.host_pool().pinned_bytes();
    const bool full = pinned >= usage.host_pool().budget_bytes() && pinned >= bytes.value();
    if (full || now - grown > kPinIdle || now - start > kPinDeadline) {
      return Pinned{Bytes(pinned), grown};
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
}

Result<Operation> BenchDaemon::Sleep() const {
  v1::SleepRequest request;
  request.set_level(1);
  return TimeCall<v1::SleepResponse>(*stub_, request, &v1::MemoryService::Stub::Sleep);
}

Result<Operation> BenchDaemon::WakeUp() const {
  return TimeCall<v1::WakeUpResponse>(*stub_, v1::WakeUpRequest(),
                                      &v1::MemoryService::Stub::WakeUp);
}

std::map<std::string, Bytes> BenchDaemon::ResidentMemory() const {
  std::map<std::string, Bytes> memory;
  std::istringstream lines(ReadFile("/proc/" + std::to_string(pid()) + "/status"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    words >> name >> kib;
    if (name == "VmRSS:" || name.rfind("Rss", 0) == 0) {
      memory[name.substr(0, name.size() - 1)] = KiB(kib);
    }
  }
  return memory;
}

Status BenchDaemon::Stop() {
  process_->Signal(SIGTERM);
  TORPOR_ASSIGN_OR_RETURN(const int status, process_->Wait(std::chrono::minutes(2)));
  if (status == 0) return Status::Ok();
  return Internal("DAEMON_FAILED", "torpord ended with " + std::to_string(status));
}

}  // namespace torpor::bench
