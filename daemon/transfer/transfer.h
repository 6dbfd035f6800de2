#ifndef TORPOR_DAEMON_TRANSFER_TRANSFER_H_
#define TORPOR_DAEMON_TRANSFER_TRANSFER_H_

#include <functional>
#include <memory>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// Device and host ends of one copy. With a null `host`, the device range is cleared.
struct CopyStep {
  DeviceAddress device;
  std::byte* host = nullptr;
  Bytes size{};
};

// Appends a step, or lengthens the last one where both ends continue it; no step grows beyond
// kMaxCopyStep. Host memory that is registered in parts must have gaps between them (as the host
// pool's has), since a step must not cross the border of two.
constexpr Bytes kMaxCopyStep = MiB(64);
void AppendStep(std::vector<CopyStep>& steps, CopyStep step);

// Moves bytes between device and host memory: one stream for each direction, a few steps queued at
// a time, so that operations share a direction step by step and one that is cancelled stops after
// the steps in flight. Thread-safe; `driver` must outlive it.
class TransferEngine {
 public:
  static Result<std::unique_ptr<TransferEngine>> Create(Driver& driver);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // Says when to stop and why; OK: go on. Called before each step.
  using Interrupt = std::function<Status()>;
  // Called after each step that arrived, with its size.
  using Arrived = std::function<void(Bytes)>;

  // Block until every step has arrived, or one failed or `interrupt` said so. On return nothing of
  // the steps is in flight; after an error the target of any step may hold a part of its bytes.
  Status ToHost(const std::vector<CopyStep>& steps, const Interrupt& interrupt,
                const Arrived& arrived = nullptr);
  Status ToDevice(const std::vector<CopyStep>& steps, const Interrupt& interrupt,
                  const Arrived& arrived = nullptr);

 private:
  TransferEngine(Driver& driver, StreamId to_host, StreamId to_device)
      : driver_(driver), to_host_(to_host), to_device_(to_device) {}
  Status Queue(StreamId stream, bool to_host, const CopyStep& step);
  Status Run(StreamId stream, Mutex& order, bool to_host, const std::vector<CopyStep>& steps,
             const Interrupt& interrupt, const Arrived& arrived);

  Driver& driver_;
  const StreamId to_host_;
  const StreamId to_device_;
  // Held while a step and its event are queued, so that an event marks its own step.
  Mutex to_host_order_;
  Mutex to_device_order_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_TRANSFER_TRANSFER_H_
