#ifndef TORPOR_TESTS_SURVIVAL_SCENE_H_
#define TORPOR_TESTS_SURVIVAL_SCENE_H_

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "tests/harness/keeper_process.h"
#include "tests/harness/temp_dir.h"
#include "tests/harness/worker_process.h"
#include "tests/survival/step_board.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::survival {

enum class Operation { kAllocate, kFree, kSleep, kWakeUp, kReserve };
const char* Name(Operation operation);

// How an operation answered its caller.
struct Answer {
  Status status;
  // The caller cannot know what became of it: its connection broke, or it is dead itself.
  bool lost = false;
  bool committed = false;  // an error, but done
};

// What Usage says of a tag, in bytes.
struct Tag {
  int64_t segments = 0;
  int64_t resident = 0;
  int64_t offloaded = 0;
  int64_t discarded = 0;
};

// A keeper, a daemon, and two workers: the victim, whose steps and whose daemon's steps `board`
// has, and its neighbour. Each has weights and an adapter, which sleeps, the victim a cache as
// well. All of it is real processes; only one at a time in a process.
class Scene {
 public:
  static constexpr int64_t kKiB = 1024;
  static constexpr int64_t kWeights = 192 * kKiB;  // in two segments
  static constexpr int64_t kFreed = 64 * kKiB;     // the second one of them
  static constexpr int64_t kCache = 64 * kKiB;
  static constexpr int64_t kAdapter = 64 * kKiB;
  static constexpr int64_t kNew = 64 * kKiB;  // allocated by the operation
  static constexpr int64_t kNeighbourWeights = 128 * kKiB;
  static constexpr int64_t kReservedDevice = 256 * kKiB;
  static constexpr int64_t kReservedHost = 128 * kKiB;
  static constexpr char kReservation[] = "of-the-test";

  // `named`: the pool's file has a name, so that it outlives daemon and keeper.
  Scene(Operation operation, Duration worker_deadline, bool named);
  ~Scene();

  // All is up, and the next thing is the operation.
  Status Start();
  StepBoard& board() { return *board_; }
  KeeperProcess& keeper() { return keeper_; }
  WorkerProcess& victim() { return *victim_; }
  WorkerProcess& neighbour() { return *neighbour_; }
  Operation operation() const { return operation_; }

  void Begin();
  // Until the armed step is reached (true), or the operation has ended without it.
  bool AwaitStep();
  Answer AwaitEnd();

  // Until nothing is under way any more, and all that is left is `workers`, protected and told
  // apart from nobody else's memory.
  Result<v1::UsageResponse> AwaitRest(int workers) const;

  // Makes all that is left of the device's or the pool's room unavailable.
  Status TakeRoom(bool host);
  // Gives it back.
  Status ReturnRoom();
  // The daemon gets no descriptor more, until `Restore`.
  Status TakeDescriptors();
  Status RestoreDescriptors();

  static std::map<std::string, Tag> TagsOf(const v1::UsageResponse& usage, const std::string& name);

 private:
  // Answered yet?
  bool Ended();

  const Operation operation_;
  TempDir dir_;
  TempDir pool_dir_{"/dev/shm"};
  std::unique_ptr<StepBoard> board_;
  KeeperProcess keeper_;
  std::unique_ptr<WorkerProcess> victim_;
  std::unique_ptr<WorkerProcess> neighbour_;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
  std::future<grpc::Status> call_;
  std::optional<Answer> answer_;
  std::string room_;  // the reservation that takes it
  int64_t descriptors_ = -1;
};

}  // namespace torpor::survival

#endif  // TORPOR_TESTS_SURVIVAL_SCENE_H_
