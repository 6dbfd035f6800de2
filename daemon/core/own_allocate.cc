// A worker's allocation, which may wait for memory: in the queue of the admission, or for memory
// that is promised to it while others still have it mapped.

#include <chrono>
#include <thread>
#include <utility>

#include "daemon/core/core.h"
#include "daemon/core/worker_timeout.h"
#include "daemon/log.h"
#include "lib/base/utf8.h"

namespace torpor {
namespace {

// Between attempts at memory that is granted and not there.
constexpr Duration kPause = milliseconds(20);

bool NoneLeft(const Status& status) { return status.reason() == "DEVICE_BUDGET_EXHAUSTED"; }
bool NotThereYet(const Status& status) { return status.reason() == "DEVICE_OUT_OF_MEMORY"; }

}  // namespace

struct Core::Allocation {
  WorkerId worker;
  std::shared_ptr<wire::Channel> channel;
  uint64_t request = 0;
  std::string tag;
  Bytes size{};
  bool waits = false;
  TimePoint since;
  TimePoint deadline;
  bool promised = false;          // by a reservation
  std::optional<uint64_t> place;  // in the queue, once it has one
  std::optional<Draw> draw;
  Status refusal;  // of the last attempt
};

void Core::OwnAllocate(WorkerId worker, const std::shared_ptr<wire::Channel>& channel,
                       uint64_t request, const wire::Allocate& message) {
  Allocation allocation;
  allocation.worker = worker;
  allocation.channel = channel;
  allocation.request = request;
  allocation.tag = message.tag;
  allocation.size = message.size;
  allocation.waits = message.timeout_ms != 0;
  allocation.since = clock_.Now();
  allocation.deadline = allocation.since + WorkerTimeout(message.timeout_ms);
  const auto info = inventory_.FindWorker(worker);
  allocation.promised = info.has_value() && !info->reservation.empty();
  Result<NewSegment> segment = AllocateSegment(context_, worker, message.tag, message.size);
  const bool wait = allocation.waits && !segment.ok() &&
                    (NoneLeft(segment.status()) || NotThereYet(segment.status()));
  if (!wait) return AnswerAllocation(allocation, std::move(segment));
  log::Info("worker {}: waits for {} under {}: {}", WorkerName(worker), message.size.value(),
            message.tag, segment.status());
  allocation.refusal = segment.status();
  auto waiting = std::make_shared<Allocation>(std::move(allocation));
  if (!waiting->promised) return WaitInQueue(waiting);
  const Status started = tasks_.Run([this, waiting] { RetryAllocation(waiting); });
  if (!started.ok()) AnswerAllocation(*waiting, started);
}

void Core::WaitInQueue(const std::shared_ptr<Allocation>& allocation) {
  const WorkerId worker = allocation->worker;
  const auto info = inventory_.FindWorker(worker);
  const uint64_t ticket = admission_.NewTicket();
  if (!allocation->place.has_value()) allocation->place = ticket;
  admission_.DrawDeviceAsync(ticket, RoundUp(allocation->size, driver_.device().granularity),
                             {WorkerName(worker), info.has_value() ? info->name : std::string(),
                              allocation->place, allocation->since},
                             allocation->deadline, [this, allocation](Result<Draw> draw) {
                               // Not on the queue's thread, which others wait for.
                               auto shared = std::make_shared<Result<Draw>>(std::move(draw));
                               const Status started = tasks_.Run([this, allocation, shared] {
                                 if (!shared->ok())
                                   return AnswerAllocation(*allocation, shared->status());
                                 allocation->draw = *std::move(*shared);
                                 RetryAllocation(allocation);
                               });
                               if (!started.ok()) {
                                 AnswerAllocation(*allocation,
                                                  shared->ok() ? started : shared->status());
                               }
                             });
  // It may have left while it was put into the queue, too late for OnGone to see.
  if (const auto link = directory_.Find(worker); !link.ok()) {
    admission_.CancelWaitsOf(WorkerName(worker), link.status());
  }
}

void Core::RetryAllocation(const std::shared_ptr<Allocation>& allocation) {
  for (;;) {
    // With its draw, which is nobody else's meanwhile.
    if (NotThereYet(allocation->refusal)) std::this_thread::sleep_for(kPause);
    Result<NewSegment> segment =
        AllocateSegment(context_, allocation->worker, allocation->tag, allocation->size,
                        std::exchange(allocation->draw, std::nullopt));
    allocation->refusal = segment.status();
    if (segment.ok()) return AnswerAllocation(*allocation, std::move(segment));
    if (NoneLeft(segment.status())) return WaitInQueue(allocation);
    if (!NotThereYet(segment.status())) return AnswerAllocation(*allocation, segment.status());
    const TimePoint now = clock_.Now();
    if (now >= allocation->deadline || !allocation->channel->Gone().ok()) {
      Status late = DeadlineExceeded("ALLOCATION_DEADLINE", segment.status().message());
      for (const auto& [key, value] : segment.status().details()) late.Add(key, value);
      late.Add("waited_ms",
               std::to_string(
                   std::chrono::duration_cast<milliseconds>(now - allocation->since).count()));
      return AnswerAllocation(*allocation, late);
    }
    // Its place is the one that it had.
    if (!allocation->promised) return WaitInQueue(allocation);
  }
}

void Core::AnswerAllocation(const Allocation& allocation, Result<NewSegment> segment) {
  constexpr auto kType = static_cast<uint16_t>(wire::Type::kAllocate);
  const auto answer = [&](const wire::AllocateReply& reply, const std::vector<int>& fds) {
    return allocation.channel->Answer(kType, allocation.request, reply, fds);
  };
  const WorkerId worker = allocation.worker;
  wire::AllocateReply reply;
  Observe("Allocate", segment.status());
  if (!segment.ok()) {
    reply.status = segment.status();
    refusals_.Write(log::Level::kInfo, WorkerName(worker) + ' ' + reply.status.reason(),
                    "worker {}: no allocation of {} under {}: {}", WorkerName(worker),
                    allocation.size.value(), Shorten(allocation.tag), reply.status);
    (void)answer(reply, {});
    return;
  }
  reply.segment = segment->placement.segment;
  reply.offset = segment->placement.offset;
  reply.size = segment->placement.size;
  std::vector<int> fds;
  for (const ExtentPtr& extent : segment->extents) {
    reply.extents.push_back({extent->id(), extent->offset(), extent->size()});
    fds.push_back(extent->fd());
  }
  {
    MutexLock lock(handover_mutex_);
    handovers_.insert(reply.segment);
  }
  const Status sent = answer(reply, fds);
  segment->extents.clear();
  {
    MutexLock lock(handover_mutex_);
    handovers_.erase(reply.segment);
    handed_over_.NotifyAll();
  }
  if (sent.ok()) return;
  log::Warning("worker {}: cannot hand over segment {}: {}", WorkerName(worker),
               reply.segment.value(), sent);
  (void)FinishAllocation(context_, worker, reply.segment, sent);
  wire::AllocateReply failed;
  failed.status = sent;
  (void)answer(failed, {});
}

wire::StatusReply Core::OwnAllocated(WorkerId worker, const wire::Allocated& request) {
  {
    // The worker is quick, and may free the segment next: then nothing here may still hold its
    // memory.
    MutexLock lock(handover_mutex_);
    while (handovers_.count(request.segment) != 0) handed_over_.Wait(handover_mutex_);
  }
  return {FinishAllocation(context_, worker, request.segment, request.status)};
}

}  // namespace torpor
