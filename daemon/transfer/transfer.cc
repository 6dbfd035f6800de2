#include "daemon/transfer/transfer.h"

#include <algorithm>
#include <deque>

namespace torpor {
namespace {

// Enough to keep the link busy while one step is waited for.
constexpr size_t kStepsInFlight = 3;

}  // namespace

void AppendStep(std::vector<CopyStep>& steps, CopyStep step) {
  if (!steps.empty()) {
    CopyStep& last = steps.back();
    const bool both_clear = last.host == nullptr && step.host == nullptr;
    const bool host_continues = last.host != nullptr && last.host + last.size.value() == step.host;
    if (last.device + last.size == step.device && (both_clear || host_continues)) {
      const Bytes more = std::min(step.size, kMaxCopyStep - last.size);
      last.size += more;
      step.device = step.device + more;
      if (step.host != nullptr) step.host += more.value();
      step.size -= more;
    }
  }
  while (step.size > Bytes(0)) {
    const Bytes part = std::min(step.size, kMaxCopyStep);
    steps.push_back({step.device, step.host, part});
    step.device = step.device + part;
    if (step.host != nullptr) step.host += part.value();
    step.size -= part;
  }
}

Result<std::unique_ptr<TransferEngine>> TransferEngine::Create(Driver& driver) {
  TORPOR_ASSIGN_OR_RETURN(const StreamId to_host, driver.CreateStream());
  Result<StreamId> to_device = driver.CreateStream();
  if (!to_device.ok()) {
    (void)driver.DestroyStream(to_host);
    return to_device.status();
  }
  return std::unique_ptr<TransferEngine>(new TransferEngine(driver, to_host, *to_device));
}

TransferEngine::~TransferEngine() {
  (void)driver_.DestroyStream(to_host_);
  (void)driver_.DestroyStream(to_device_);
}

Status TransferEngine::Queue(StreamId stream, bool to_host, const CopyStep& step) {
  if (to_host) return driver_.CopyToHost(stream, step.host, step.device, step.size);
  if (step.host == nullptr) return driver_.Clear(stream, step.device, step.size);
  return driver_.CopyToDevice(stream, step.device, step.host, step.size);
}

Status TransferEngine::Run(StreamId stream, Mutex& order, bool to_host,
                           const std::vector<CopyStep>& steps, const Interrupt& interrupt,
                           const Arrived& arrived) {
  struct InFlight {
    EventId event;
    Bytes size;
  };
  std::deque<InFlight> in_flight;
  Status status;
  bool settled = true;  // no step is in flight that no event tells of
  const auto wait_oldest = [&] {
    const InFlight oldest = in_flight.front();
    in_flight.pop_front();
    const Status waited = driver_.WaitEvent(oldest.event);
    if (waited.ok() && arrived != nullptr) arrived(oldest.size);
    if (status.ok()) status = waited;
    settled = settled && waited.ok();
  };
  for (const CopyStep& step : steps) {
    if (in_flight.size() >= kStepsInFlight) wait_oldest();
    if (status.ok()) status = interrupt();
    if (!status.ok()) break;
    MutexLock lock(order);
    status = Queue(stream, to_host, step);
    if (!status.ok()) break;
    Result<EventId> event = driver_.RecordEvent(stream);
    if (!event.ok()) {
      status = event.status();
      settled = false;
      break;
    }
    in_flight.push_back({*event, step.size});
  }
  while (!in_flight.empty()) wait_oldest();
  // The memory belongs to the copies until they are done, whatever went wrong with telling so.
  if (!settled) {
    if (const Status synchronized = driver_.Synchronize(); !synchronized.ok() && status.ok()) {
      status = synchronized;
    }
  }
  return status;
}

Status TransferEngine::ToHost(const std::vector<CopyStep>& steps, const Interrupt& interrupt,
                              const Arrived& arrived) {
  return Run(to_host_, to_host_order_, true, steps, interrupt, arrived);
}

Status TransferEngine::ToDevice(const std::vector<CopyStep>& steps, const Interrupt& interrupt,
                                const Arrived& arrived) {
  return Run(to_device_, to_device_order_, false, steps, interrupt, arrived);
}

}  // namespace torpor
