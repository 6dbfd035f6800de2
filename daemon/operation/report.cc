#include "daemon/operation/report.h"

#include <chrono>
#include <map>
#include <utility>

namespace torpor {
namespace {

constexpr Duration kInterval = milliseconds(100);

SegmentsEvent::State RestState(SegmentState state) {
  if (state == SegmentState::kOffloaded) return SegmentsEvent::State::kOffloaded;
  return state == SegmentState::kDiscarded ? SegmentsEvent::State::kDiscarded
                                           : SegmentsEvent::State::kResident;
}

}  // namespace

OperationReport::OperationReport(EventLog& events, OperationKind kind, OperationId operation,
                                 WorkerId worker, const std::string& worker_name)
    : events_(events), begun_(std::chrono::steady_clock::now()) {
  head_.kind = progress_.kind = kind;
  head_.operation = progress_.operation = operation;
  head_.worker = progress_.worker = worker;
  head_.worker_name = progress_.worker_name = worker_name;
}

void OperationReport::Started(const Plan& plan) {
  if (plan.empty()) return;
  started_ = true;
  constexpr auto kResident = SegmentState::kResident;
  constexpr auto kOffloaded = SegmentState::kOffloaded;
  constexpr auto kDiscarded = SegmentState::kDiscarded;
  WorkerOutcome planned;
  planned.segments = plan.segments();
  if (head_.kind == OperationKind::kSleep) {
    planned.copied = plan.Sum(kResident, kOffloaded);
    planned.discarded = plan.Sum(kResident, kDiscarded) + plan.Sum(kOffloaded, kDiscarded);
    for (const PlannedArena& arena : plan.arenas) {
      for (const ExtentPtr& extent : arena.extents) planned.device += extent->size();
    }
    progress_.total = planned.copied;
  } else {
    planned.copied = plan.Sum(kOffloaded, kResident);
    planned.discarded = plan.Sum(kDiscarded, kResident);
    planned.device = planned.copied + planned.discarded;
    progress_.total = planned.device;
  }
  Tell(OperationEvent::Change::kStarted, planned);
}

void OperationReport::Enter(Phase phase, const std::string& tag) {
  const bool first = told_ == TimePoint();
  const bool changed = phase != progress_.phase;
  progress_.phase = phase;
  progress_.tag = tag;
  untold_ = true;
  if (first || changed) TellProgress(std::chrono::steady_clock::now());
}

void OperationReport::Arrived(Bytes size) {
  progress_.done += size;
  untold_ = true;
  const TimePoint now = std::chrono::steady_clock::now();
  if (now - told_ >= kInterval) TellProgress(now);
}

void OperationReport::Committed(const Plan& plan, const WorkerOutcome& outcome) {
  Tell(OperationEvent::Change::kCommitted, outcome);
  for (const PlannedArena& arena : plan.arenas) {
    std::map<std::pair<SegmentState, SegmentState>, std::pair<int64_t, Bytes>> moves;
    for (const PlannedSegment& segment : arena.segments) {
      auto& [count, size] = moves[{segment.from, segment.to}];
      ++count;
      size += segment.size;
    }
    for (const auto& [states, sums] : moves) {
      events_.Publish(SegmentsEvent{head_.operation, head_.worker, head_.worker_name, arena.tag,
                                    RestState(states.first), RestState(states.second), sums.first,
                                    sums.second});
    }
  }
}

void OperationReport::Ended(const WorkerOutcome& outcome) {
  if (untold_) TellProgress(std::chrono::steady_clock::now());
  Tell(OperationEvent::Change::kEnded, outcome);
}

void OperationReport::Tell(OperationEvent::Change change, const WorkerOutcome& outcome) {
  if (!started_) return;
  OperationEvent event = head_;
  event.change = change;
  event.status = outcome.status;
  event.segments = outcome.segments;
  event.device = outcome.device;
  event.copied = outcome.copied;
  event.unchanged = outcome.unchanged;
  event.discarded = outcome.discarded;
  event.rollback_pending = outcome.rollback_pending;
  event.times = outcome.times;
  event.times.total = std::chrono::steady_clock::now() - begun_;
  events_.Publish(std::move(event));
}

void OperationReport::TellProgress(TimePoint now) {
  told_ = now;
  untold_ = false;
  if (started_) events_.Publish(progress_);
}

}  // namespace torpor
