#ifndef TORPOR_TESTS_FUZZ_WORLD_H_
#define TORPOR_TESTS_FUZZ_WORLD_H_

#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "client/session.h"
#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "daemon/service/memory_service.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/base/units.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "tests/fuzz/input.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor::fuzz {

class Call;

// A daemon's core and its service on gRPC's in-process transport, two workers with real sessions,
// and one connection that says what it likes. Each method does one step by the input. Not
// thread-safe.
class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Any method of the service, with any request. The answer is waited for a moment; after that the
  // call stays under way.
  void CallService(Input& input);
  void CancelCall(Input& input);
  // What a worker's program does: allocates, frees, sleeps, wakes, uses its memory, reconnects.
  void UseWorker(Input& input);
  // Any payload for any request of a worker.
  void SendFrame(Input& input);
  void FailDriver(Input& input);
  void AdvanceClock(Input& input);

  // Ends all calls, and checks that the books, which it gives, agree.
  v1::UsageResponse Check();
  // The same; then frees and releases everything, and checks that nothing is left.
  void Reset();

 private:
  struct Segment {
    DeviceAddress address;
    Bytes size{};
    std::string tag;
    uint64_t seed = 0;
  };
  struct Worker {
    std::unique_ptr<client::Session> session;
    std::shared_ptr<FaultDriver> driver;
    std::vector<Segment> segments;
    bool changed = false;  // is not as Reset leaves it
  };

  void Connect(Worker& worker, Input& input);
  void Allocate(Worker& worker, Input& input);
  void UseMemory(Worker& worker);
  void OpenRaw();
  void Learn(const std::string& name);
  void WaitForRest();
  v1::UsageResponse Usage();

  std::string directory_;
  std::unique_ptr<HostDriver> device_;
  std::unique_ptr<FaultDriver> driver_;
  InProcessKeeper keeper_;
  ManualClock clock_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<MemoryServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::TemplatedGenericStub<google::protobuf::Message, google::protobuf::Message>>
      stub_;
  std::vector<std::unique_ptr<Call>> calls_;  // under way
  std::vector<Worker> workers_;
  UniqueFd raw_;
  uint64_t raw_id_ = 0;
  uint64_t seed_ = 0;
  std::vector<std::string> names_;  // strings that mean something
  size_t fixed_names_ = 0;
};

}  // namespace torpor::fuzz

#endif  // TORPOR_TESTS_FUZZ_WORLD_H_
