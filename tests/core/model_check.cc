#include <algorithm>
#include <thread>
#include <utility>

#include "lib/base/descriptors.h"
#include "lib/base/status_matchers.h"
#include "tests/core/model.h"

namespace torpor {

bool DescriptorsBecome(int64_t expected, int64_t more) {
  const TimePoint until = std::chrono::steady_clock::now() + seconds(20);
  for (;;) {
    const int64_t count = CountDescriptors().open;
    if (count >= expected && count <= expected + more) return true;
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// --- waiting

void ModelFixture::Wait() {
  if (waiters_.size() >= 4) return;
  ReservationSpec spec = RandomSpec();
  if (OneIn(2)) spec.parts.push_back({"more", kPage * static_cast<int64_t>(Random(60))});
  const bool fits = FitsBehindAll(spec);
  ModelWaiter waiter;
  waiter.ticket = core_->NewTicket();
  waiter.spec = spec;
  waiter.deadline = clock_.Now() + seconds(1 + static_cast<int64_t>(Random(80)));
  waiter.answer = std::make_shared<ModelWaiter::Answer>();
  core_->ReserveAsync(waiter.ticket, spec, waiter.deadline,
                      [answer = waiter.answer](Result<ReserveResult> result) {
                        MutexLock lock(answer->mutex);
                        EXPECT_FALSE(answer->result.has_value()) << "answered twice";
                        answer->result = std::move(result);
                      });
  const TimePoint until = In(seconds(20));
  while (fits && !waiter.Answered().has_value()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "what fits need not wait";
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(waiter.Answered().has_value(), fits);
  waiters_.push_back(waiter);
}

void ModelFixture::StopWaiting() {
  if (waiters_.empty()) return;
  ModelWaiter& waiter = waiters_[Random(waiters_.size())];
  waiter.cancelled = true;
  core_->CancelWait(waiter.ticket, Aborted("NOT_WANTED", "the model does not want it any more"));
  EXPECT_TRUE(waiter.Answered().has_value());
}

std::optional<Result<ReserveResult>> ModelFixture::ModelWaiter::Answered() const {
  MutexLock lock(answer->mutex);
  return answer->result;
}

void ModelFixture::TakeAnswers() {
  Bytes before{};  // what those want who came earlier and still wait
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    const auto answer = it->Answered();
    if (!answer.has_value()) {
      before += it->spec.device();
      ++it;
      continue;
    }
    if (answer->ok()) {
      const Bytes device = it->spec.device();
      if (device > Bytes(0)) {
        EXPECT_GE((*answer)->budget.available, before + device) << "passed those that came earlier";
      }
      Made(it->spec, **answer);
    } else if (answer->status().code() == Code::kDeadlineExceeded) {
      EXPECT_LE(it->deadline, clock_.Now()) << answer->status().ToString();
    } else {
      EXPECT_TRUE(it->cancelled) << answer->status().ToString();
    }
    it = waiters_.erase(it);
  }
}

bool ModelFixture::NobodyCanBeServed() const {
  if (before_.queue.size() != waiters_.size()) return false;
  Bytes device = before_.budget.available;
  Bytes host = HostAvailable();
  for (const ModelWaiter& waiter : waiters_) {
    if (waiter.deadline <= clock_.Now()) return false;
    if (Fits(waiter.spec, device, host)) return false;
    device -= waiter.spec.device();
    host -= waiter.spec.host;
  }
  return true;
}

void ModelFixture::SettleWaiters() {
  const TimePoint until = In(seconds(20));
  for (;;) {
    TakeAnswers();
    before_ = Usage();
    if (NobodyCanBeServed()) return;
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "who waits is passed over";
    std::this_thread::sleep_for(milliseconds(1));
  }
}

bool ModelFixture::Fits(const ReservationSpec& spec, Bytes device, Bytes host) {
  return (spec.device() == Bytes(0) || spec.device() <= device) &&
         (spec.host == Bytes(0) || spec.host <= host);
}

bool ModelFixture::FitsBehindAll(const ReservationSpec& spec) const {
  Bytes device = before_.budget.available;
  Bytes host = HostAvailable();
  for (const WaiterStats& waiter : before_.queue) {
    device -= waiter.device;
    host -= waiter.host;
  }
  return Fits(spec, device, host);
}

Bytes ModelFixture::FirstAwaited() const {
  return before_.queue.empty() ? Bytes(0) : before_.queue.front().device;
}

// --- what Usage said before the operation

const ReservationStats* ModelFixture::Listed(const std::string& id) const {
  for (const ReservationStats& stats : before_.reservations) {
    if (stats.id == id) return &stats;
  }
  return nullptr;
}

Bytes ModelFixture::LeftDevice(const std::string& id) const {
  const ReservationStats* const stats = Listed(id);
  if (stats == nullptr) return Bytes(0);
  return stats->device - stats->drawn_device - stats->surrendered_device;
}

Bytes ModelFixture::LeftHost(const std::string& id) const {
  const ReservationStats* const stats = Listed(id);
  return stats == nullptr ? Bytes(0) : stats->host - stats->drawn_host;
}

bool ModelFixture::Live(const std::string& id) const {
  const auto found = reservations_.find(id);
  return found != reservations_.end() && !found->second.over &&
         found->second.expires > clock_.Now();
}

std::string ModelFixture::AnyReservation() {
  if (reservations_.empty() || OneIn(16)) return "r-1000000";
  std::vector<std::string> live;
  for (const auto& [id, reservation] : reservations_) {
    if (Live(id)) live.push_back(id);
  }
  if (!live.empty() && !OneIn(6)) return live[Random(live.size())];
  return std::next(reservations_.begin(), static_cast<ptrdiff_t>(Random(reservations_.size())))
      ->first;
}

// --- comparison

void ModelFixture::Check() {
  const UsageReport usage = Usage();
  ASSERT_EQ(usage.workers.size(), workers_.size());
  for (const ModelWorker& worker : workers_) {
    const auto stats =
        std::find_if(usage.workers.begin(), usage.workers.end(),
                     [&](const WorkerStats& one) { return one.info.id == worker.real->id; });
    ASSERT_NE(stats, usage.workers.end());
    CheckWorker(worker, *stats);
  }
  CheckReservations(usage);
  const BudgetStats& budget = usage.budget;
  EXPECT_LE(budget.promised + budget.resident + budget.safety_reserve, budget.total);
  EXPECT_EQ(budget.available,
            budget.free - budget.promised - budget.safety_reserve - budget.pending);
  EXPECT_EQ(budget.overcommitted, Bytes(0));
  EXPECT_LE(usage.pool.used + usage.pool_promised, usage.pool.budget);
  ExpectBooksAgree();
  CheckDescriptors(usage);
  size_t segments = 0;
  for (const ModelWorker& worker : workers_) segments += worker.segments.size();
  EXPECT_EQ(keeper_.segments().size(), segments);
}

void ModelFixture::CheckWorker(const ModelWorker& worker, const WorkerStats& stats) {
  SCOPED_TRACE(worker.name);
  EXPECT_EQ(stats.info.reservation, worker.reservation);
  EXPECT_FALSE(stats.unknown_attachment);
  std::map<std::string, TagStats> expected;
  for (const ModelSegment& segment : worker.segments) {
    TagStats& tag = expected[segment.memory.tag];
    const Bytes size = segment.memory.size;
    ++tag.segments;
    if (segment.state == SegmentState::kOffloaded) {
      tag.offloaded += size;
    } else if (segment.state == SegmentState::kDiscarded) {
      tag.discarded += size;
    } else {
      tag.resident += size;
      EXPECT_TRUE(segment.zero ? TestWorker::IsZero(segment.memory)
                               : TestWorker::HasPattern(segment.memory))
          << "wrong bytes in a segment of " << size.value() << " of " << segment.memory.tag;
    }
  }
  for (const TagStats& tag : stats.tags) {
    SCOPED_TRACE(tag.tag);
    const TagStats want = expected[tag.tag];
    EXPECT_EQ(tag.segments, want.segments);
    EXPECT_EQ(tag.moving, 0);
    EXPECT_EQ(tag.resident, want.resident);
    EXPECT_EQ(tag.offloaded, want.offloaded);
    EXPECT_EQ(tag.discarded, want.discarded);
    EXPECT_EQ(tag.host, want.offloaded);
    expected.erase(tag.tag);
  }
  EXPECT_TRUE(expected.empty());
}

void ModelFixture::CheckReservations(const UsageReport& usage) {
  Bytes promised{};
  Bytes promised_host{};
  Bytes drawn{};
  for (const ReservationStats& stats : usage.reservations) {
    SCOPED_TRACE(stats.id);
    ASSERT_TRUE(Live(stats.id));
    const ModelReservation& model = reservations_.at(stats.id);
    EXPECT_EQ(stats.device, model.device);
    EXPECT_EQ(stats.host, model.host);
    EXPECT_EQ(stats.expires, model.expires);
    EXPECT_EQ(stats.holders, model.holders);
    EXPECT_GE(stats.drawn_device, Bytes(0));
    EXPECT_GE(stats.surrendered_device, Bytes(0));
    EXPECT_GE(stats.drawn_host, Bytes(0));
    EXPECT_LE(stats.drawn_device + stats.surrendered_device, stats.device);
    EXPECT_LE(stats.drawn_host, stats.host);
    promised += stats.device - stats.drawn_device - stats.surrendered_device;
    promised_host += stats.host - stats.drawn_host;
    drawn += stats.drawn_device;
  }
  int64_t live = 0;
  for (const auto& [id, reservation] : reservations_) live += Live(id) ? 1 : 0;
  EXPECT_EQ(static_cast<int64_t>(usage.reservations.size()), live);
  EXPECT_EQ(usage.budget.promised, promised);
  EXPECT_EQ(usage.pool_promised, promised_host);
  EXPECT_LE(drawn, usage.budget.resident);
}

void ModelFixture::CheckDescriptors(const UsageReport& usage) {
  int64_t extents = 0;
  for (const WorkerStats& worker : usage.workers) {
    for (const TagStats& tag : worker.tags) extents += tag.extents;
  }
  // One with the handle, one in the device's books, one with the extent, one with the keeper.
  constexpr int64_t kOfExtent = 4;
  const int64_t expected =
      base_fds_ + worker_fds_ * static_cast<int64_t>(usage.workers.size()) + kOfExtent * extents;
  // A handle whose release was made to fail stays with its worker until it unmaps the extent.
  EXPECT_TRUE(DescriptorsBecome(expected, faults_ ? extents : 0))
      << CountDescriptors().open << ", not " << expected;
}

}  // namespace torpor
