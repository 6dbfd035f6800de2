#ifndef TORPOR_TESTS_CORE_CORE_FIXTURE_H_
#define TORPOR_TESTS_CORE_CORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/session.h"
#include "daemon/core/core.h"
#include "daemon/keeper/in_process_keeper.h"
#include "lib/base/clock.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor {

// A worker in this process: a real session over the real socket, with a driver of its own whose
// calls can be made to fail. On the host driver device memory is plain memory of this process.
class TestWorker {
 public:
  std::unique_ptr<client::Session> session;
  std::shared_ptr<FaultDriver> faults;
  WorkerId id;

  struct Segment {
    DeviceAddress address;
    Bytes size{};
    uint64_t seed = 0;
    std::string tag;
  };
  std::vector<Segment> segments;

  // Allocates and fills with a pattern.
  Status Allocate(const std::string& tag, Bytes size, uint64_t seed);
  Status Free(size_t index);
  // Every byte of `segment` is its pattern, or zero.
  static bool HasPattern(const Segment& segment);
  static bool IsZero(const Segment& segment);
  static void Fill(const Segment& segment);
  // Every segment of the tag (of all tags: "").
  bool AllHavePattern(const std::string& tag = "") const;
};

// A whole daemon without gRPC, on the host driver, with faults.
class CoreFixture : public ::testing::Test {
 protected:
  struct Setup {
    Bytes device = MiB(64);
    Bytes granularity = KiB(64);
    Bytes host_pool = MiB(64);
    Bytes pool_slab = HostPool::kSlab;
    bool verify_images = false;
    Bytes safety_reserve{};
    Duration worker_deadline = seconds(5);
    bool require_reservation = false;
  };

  ~CoreFixture() override;
  void Start(const Setup& setup);
  void Start() { Start(Setup()); }
  std::unique_ptr<TestWorker> Connect(const std::string& name,
                                      wire::Quiesce quiesce = wire::Quiesce::kSynchronize,
                                      const std::string& reservation = "");
  Result<std::unique_ptr<TestWorker>> TryConnect(const client::Session::Options& options);

  static TimePoint In(Duration duration) { return std::chrono::steady_clock::now() + duration; }
  Result<std::vector<WorkerOutcome>> Sleep(const Selector& selector, int32_t level = 1,
                                           Duration timeout = seconds(30));
  Result<std::vector<WorkerOutcome>> Wake(const Selector& selector, Duration timeout = seconds(30));
  static Selector All();
  static Selector Only(const TestWorker& worker, std::vector<std::string> tags = {});

  // The sums of Usage agree with each other and with the driver.
  void ExpectBooksAgree();
  UsageReport Usage();
  TagStats Stats(const TestWorker& worker, const std::string& tag);
  // Waits until no worker is under an operation.
  void WaitForRest();
  // Waits until `count` workers are connected.
  void WaitForWorkers(size_t count);

  std::string directory_;
  std::unique_ptr<HostDriver> device_;
  std::unique_ptr<FaultDriver> driver_;
  InProcessKeeper keeper_;
  ManualClock clock_;
  std::unique_ptr<Core> core_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_CORE_CORE_FIXTURE_H_
