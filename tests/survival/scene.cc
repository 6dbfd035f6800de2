#include "tests/survival/scene.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/harness/daemon_process.h"

namespace torpor::survival {
namespace {

constexpr std::chrono::seconds kCallDeadline{30};
constexpr Duration kLook = milliseconds(1);

std::vector<std::string> Flags(Duration worker_deadline, const std::string& pool) {
  const int64_t ms = std::chrono::duration_cast<milliseconds>(worker_deadline).count();
  return {"--host_device_memory=4MiB",
          "--host_granularity=64KiB",
          "--host_pool=4MiB",
          "--safety_reserve=0",
          "--reconnect_grace=60s",
          "--worker_deadline=" + std::to_string(ms) + "ms",
          pool};
}

int FirstFreeDescriptor(pid_t process) {
  std::set<int> used;
  std::error_code error;
  const std::string folder = "/proc/" + std::to_string(process) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    used.insert(std::atoi(entry.path().filename().c_str()));
  }
  int free = 0;
  while (used.count(free) > 0) ++free;
  return free;
}

Answer AnswerOf(const grpc::Status& status) {
  Answer answer;
  if (status.ok()) return answer;
  answer.status =
      Status(static_cast<Code>(status.error_code()), ReasonOf(status), status.error_message());
  answer.lost = ReasonOf(status).empty();
  answer.committed = DetailOf(status, "committed") == "true";
  return answer;
}

}  // namespace

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kAllocate:
      return "allocate";
    case Operation::kFree:
      return "free";
    case Operation::kSleep:
      return "sleep";
    case Operation::kWakeUp:
      return "wake_up";
    case Operation::kReserve:
      return "reserve";
  }
  return "?";
}

Scene::Scene(Operation operation, Duration worker_deadline, bool named)
    : operation_(operation),
      keeper_(
          dir_.path(),
          Flags(worker_deadline, named ? "--pool_dir=" + pool_dir_.path() : "--pool_memory=memfd"),
          "tests/survival/stepped_torpord") {}

Scene::~Scene() {
  if (board_ != nullptr) (void)board_->Disarm();
}

Status Scene::Start() {
  std::signal(SIGPIPE, SIG_IGN);  // of a worker that is told something when it is dead
  const std::string path = dir_.path() + "/steps";
  TORPOR_ASSIGN_OR_RETURN(board_, StepBoard::Create(path));
  ::setenv(StepBoard::kEnvironment, path.c_str(), 1);
  TORPOR_RETURN_IF_ERROR(keeper_.Start());
  TORPOR_ASSIGN_OR_RETURN(neighbour_, WorkerProcess::Connect(keeper_.worker_socket(), "neighbour"));
  TORPOR_ASSIGN_OR_RETURN(victim_,
                          WorkerProcess::Connect(keeper_.worker_socket(), "victim", "guard", "",
                                                 "tests/survival/stepped_worker"));
  struct Setup {
    WorkerProcess& worker;
    std::string command;
  };
  const Setup all[] = {
      {*neighbour_, "alloc weights 128KiB 1"}, {*neighbour_, "alloc adapter 64KiB 2"},
      {*victim_, "alloc weights 128KiB 1"},    {*victim_, "alloc weights 64KiB 2"},
      {*victim_, "alloc kv_cache 64KiB 3"},    {*victim_, "alloc adapter 64KiB 4"},
      {*neighbour_, "sleep 1 adapter"},        {*victim_, "sleep 1 adapter"},
  };
  for (const Setup& one : all) TORPOR_RETURN_IF_ERROR(one.worker.Ask(one.command).status());
  if (operation_ == Operation::kWakeUp) {
    TORPOR_RETURN_IF_ERROR(victim_->Ask("sleep 1 weights kv_cache").status());
  }
  // Connected, so that the operation's call needs no descriptor.
  stub_ = keeper_.NewStub();
  grpc::ClientContext context;
  v1::UsageResponse usage;
  return AnswerOf(stub_->Usage(&context, {}, &usage)).status;
}

void Scene::Begin() {
  if (operation_ == Operation::kAllocate || operation_ == Operation::kFree) {
    (void)victim_->Tell(operation_ == Operation::kFree ? "free 2" : "alloc weights 64KiB 5");
    return;
  }
  call_ = std::async(std::launch::async, [operation = operation_, stub = stub_.get()] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    if (operation == Operation::kReserve) {
      v1::ReserveRequest request;
      request.set_name(kReservation);
      v1::ReservationPart& part = *request.add_parts();
      part.set_name("weights");
      part.set_device_bytes(kReservedDevice);
      request.set_host_bytes(kReservedHost);
      request.mutable_ttl()->set_seconds(600);
      v1::ReserveResponse response;
      return stub->Reserve(&context, request, &response);
    }
    const auto select = [](v1::Selector& selector) {
      selector.add_workers("victim");
      selector.add_tags("weights");
      selector.add_tags("kv_cache");
    };
    if (operation == Operation::kSleep) {
      v1::SleepRequest request;
      select(*request.mutable_selector());
      request.set_level(1);
      v1::SleepResponse response;
      return stub->Sleep(&context, request, &response);
    }
    v1::WakeUpRequest request;
    select(*request.mutable_selector());
    v1::WakeUpResponse response;
    return stub->WakeUp(&context, request, &response);
  });
}

bool Scene::Ended() {
  if (answer_.has_value()) return true;
  if (call_.valid()) {
    if (call_.wait_for(kLook) != std::future_status::ready) return false;
    answer_ = AnswerOf(call_.get());
    return true;
  }
  const auto answer = victim_->ReadAnswer(kLook);
  if (answer.status().reason() == "NO_OUTPUT") return false;
  answer_ = Answer{answer.status(), answer.status().reason() == "END_OF_OUTPUT", false};
  return true;
}

bool Scene::AwaitStep() {
  while (!board_->reached() && !Ended()) {
  }
  return board_->reached();
}

Answer Scene::AwaitEnd() {
  while (!Ended()) {
  }
  return *answer_;
}

Result<v1::UsageResponse> Scene::AwaitRest(int workers) const {
  return keeper_.AwaitUsage([&](const v1::UsageResponse& usage) {
    if (usage.protection().code() != 0 || usage.device().other_bytes() != 0) return false;
    if (usage.workers_size() != workers) return false;
    return std::all_of(usage.workers().begin(), usage.workers().end(), [](const auto& worker) {
      return !worker.awaited() && worker.operation_id().empty() && !worker.rollback_pending();
    });
  });
}

Status Scene::TakeRoom(bool host) {
  TORPOR_ASSIGN_OR_RETURN(const v1::UsageResponse usage, keeper_.Usage());
  v1::ReserveRequest request;
  request.set_name("all-the-room");
  request.set_keep(true);
  request.mutable_ttl()->set_seconds(600);
  if (host) {
    const v1::HostPoolUsage& pool = usage.host_pool();
    request.set_host_bytes(pool.budget_bytes() - pool.used_bytes() - pool.promised_bytes());
  } else {
    v1::ReservationPart& part = *request.add_parts();
    part.set_name("all");
    part.set_device_bytes(usage.device().available_bytes());
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::ReserveResponse response;
  TORPOR_RETURN_IF_ERROR(AnswerOf(keeper_.NewStub()->Reserve(&context, request, &response)).status);
  room_ = response.reservation_id();
  return Status::Ok();
}

Status Scene::ReturnRoom() {
  v1::ReleaseRequest request;
  request.set_reservation_id(room_);
  grpc::ClientContext context;
  v1::ReleaseResponse response;
  return AnswerOf(keeper_.NewStub()->Release(&context, request, &response)).status;
}

Status Scene::TakeDescriptors() {
  TORPOR_ASSIGN_OR_RETURN(const pid_t daemon, keeper_.daemon());
  rlimit limit{};
  if (::prlimit(daemon, RLIMIT_NOFILE, nullptr, &limit) != 0) return ErrnoStatus(errno, "prlimit");
  descriptors_ = static_cast<int64_t>(limit.rlim_cur);
  // More than once: the connections of those who looked at it have their descriptors a moment yet.
  for (int turn = 0; turn < 5; ++turn) {
    limit.rlim_cur = static_cast<rlim_t>(FirstFreeDescriptor(daemon));
    if (::prlimit(daemon, RLIMIT_NOFILE, &limit, nullptr) != 0) {
      return ErrnoStatus(errno, "prlimit");
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  return Status::Ok();
}

Status Scene::RestoreDescriptors() {
  TORPOR_ASSIGN_OR_RETURN(const pid_t daemon, keeper_.daemon());
  rlimit limit{};
  if (::prlimit(daemon, RLIMIT_NOFILE, nullptr, &limit) != 0) return ErrnoStatus(errno, "prlimit");
  limit.rlim_cur = static_cast<rlim_t>(descriptors_);
  if (::prlimit(daemon, RLIMIT_NOFILE, &limit, nullptr) != 0) return ErrnoStatus(errno, "prlimit");
  return Status::Ok();
}

std::map<std::string, Tag> Scene::TagsOf(const v1::UsageResponse& usage, const std::string& name) {
  std::map<std::string, Tag> tags;
  for (const v1::WorkerUsage& worker : usage.workers()) {
    if (worker.name() != name) continue;
    for (const v1::TagUsage& tag : worker.tags()) {
      tags[tag.tag()] = {tag.segments(), tag.resident_bytes(), tag.offloaded_bytes(),
                         tag.discarded_bytes()};
    }
  }
  return tags;
}

}  // namespace torpor::survival
