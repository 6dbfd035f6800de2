#include "daemon/transfer/transfer.h"

#include <sys/mman.h>

#include <cerrno>
#include <deque>

#include "daemon/log.h"

namespace torpor {
namespace {

// Enough to keep the link busy while a step is waited for and the next one prepared, however small
// they are; no more, so that who comes with a higher priority does not wait long.
constexpr Bytes kBytesInFlight = kMaxCopyStep * 3;
constexpr int kStepsInFlight = 64;
// How often who waits for its turn asks whether it is still wanted.
constexpr Duration kPoll = milliseconds(5);
// For 256 GiB.
constexpr Bytes kDigestBuffer = MiB(16);

}  // namespace

// --- Copies

// One operation's copies.
class TransferEngine::Run {
 public:
  Run(Driver& driver, Direction& direction, int32_t priority, const Interrupt& interrupt,
      const Arrived& arrived)
      : driver_(driver), direction_(direction), interrupt_(interrupt), arrived_(arrived) {
    MutexLock lock(direction_.mutex);
    rank_ = {-int64_t{priority}, direction_.operations++};
  }

  Status Copy(StepSource& source) {
    while (status_.ok()) {
      status_ = interrupt_();
      if (!status_.ok()) break;
      CopyStep step;
      Result<StepSource::Next> next = source.NextStep(false, step);
      if (next.ok() && *next == StepSource::Next::kNotReady) {
        while (!in_flight_.empty()) WaitOldest();
        if (!status_.ok()) break;
        next = source.NextStep(true, step);
      }
      if (!next.ok()) status_ = next.status();
      if (!next.ok() || *next == StepSource::Next::kEnd) break;
      if (TakeTurn(step.size)) Queue(step);
    }
    while (!in_flight_.empty()) WaitOldest();
    // The memory belongs to the copies until they are done, whatever went wrong with telling so.
    if (!settled_) {
      const Status synchronized = driver_.Synchronize();
      if (status_.ok()) status_ = synchronized;
    }
    return status_;
  }

 private:
  struct InFlight {
    EventId event;
    Bytes size;
  };

  // False if it does not go on: one of our own steps failed meanwhile, or nobody wants it any more.
  bool TakeTurn(Bytes size) {
    for (;;) {
      switch (WaitForTurn(size)) {
        case Turn::kTaken:
          return true;
        case Turn::kOursAreInFlight:
          WaitOldest();
          break;
        case Turn::kNotYet:
          if (status_.ok()) status_ = interrupt_();
          break;
      }
      if (status_.ok()) continue;
      MutexLock lock(direction_.mutex);
      direction_.ready.erase(rank_);
      direction_.changed.NotifyAll();
      return false;
    }
  }

  enum class Turn { kTaken, kOursAreInFlight, kNotYet };
  // kOursAreInFlight: all that may be in flight is, and nobody else waits for some of it.
  Turn WaitForTurn(Bytes size) {
    const TimePoint until = std::chrono::steady_clock::now() + kPoll;
    MutexLock lock(direction_.mutex);
    direction_.ready.insert(rank_);
    for (;;) {
      const bool full =
          direction_.steps_in_flight >= kStepsInFlight ||
          (direction_.steps_in_flight > 0 && direction_.bytes_in_flight + size > kBytesInFlight);
      if (full && !in_flight_.empty()) return Turn::kOursAreInFlight;
      if (!full && !direction_.queuing && *direction_.ready.begin() == rank_) break;
      if (std::chrono::steady_clock::now() >= until) return Turn::kNotYet;
      direction_.changed.WaitUntil(direction_.mutex, until);
    }
    direction_.ready.erase(rank_);
    direction_.queuing = true;
    ++direction_.steps_in_flight;
    direction_.bytes_in_flight += size;
    direction_.changed.NotifyAll();
    return Turn::kTaken;
  }

  void Queue(const CopyStep& step) {
    status_ = direction_.to_host
                  ? driver_.CopyToHost(direction_.stream, step.host, step.device, step.size)
                  : driver_.CopyToDevice(direction_.stream, step.device, step.host, step.size);
    Result<EventId> event = status_.ok() ? driver_.RecordEvent(direction_.stream) : status_;
    if (status_.ok() && !event.ok()) settled_ = false;
    status_ = event.status();
    if (event.ok()) in_flight_.push_back({*event, step.size});
    MutexLock lock(direction_.mutex);
    direction_.queuing = false;
    if (!event.ok()) Landed(step.size);
    direction_.changed.NotifyAll();
  }

  void WaitOldest() {
    const InFlight oldest = in_flight_.front();
    in_flight_.pop_front();
    const Status waited = driver_.WaitEvent(oldest.event);
    settled_ = settled_ && waited.ok();
    if (status_.ok()) status_ = waited;
    {
      MutexLock lock(direction_.mutex);
      Landed(oldest.size);
      direction_.changed.NotifyAll();
    }
    if (waited.ok() && arrived_ != nullptr) arrived_(oldest.size);
  }

  void Landed(Bytes size) REQUIRES(direction_.mutex) {
    --direction_.steps_in_flight;
    direction_.bytes_in_flight -= size;
  }

  Driver& driver_;
  Direction& direction_;
  const Interrupt& interrupt_;
  const Arrived& arrived_;
  std::pair<int64_t, uint64_t> rank_;
  std::deque<InFlight> in_flight_;
  Status status_;
  bool settled_ = true;  // no step is in flight that no event tells of
};

Status TransferEngine::ToHost(StepSource& source, int32_t priority, const Interrupt& interrupt,
                              const Arrived& arrived) {
  return Run(driver_, to_host_, priority, interrupt, arrived).Copy(source);
}

Status TransferEngine::ToDevice(StepSource& source, int32_t priority, const Interrupt& interrupt,
                                const Arrived& arrived) {
  return Run(driver_, to_device_, priority, interrupt, arrived).Copy(source);
}

// --- The engine

Result<std::unique_ptr<TransferEngine>> TransferEngine::Create(Driver& driver) {
  std::unique_ptr<TransferEngine> engine(new TransferEngine(driver));
  TORPOR_RETURN_IF_ERROR(engine->Start());
  return engine;
}

Status TransferEngine::Start() {
  to_host_.to_host = true;
  for (StreamId* const stream :
       {&to_host_.stream, &to_device_.stream, &clear_stream_, &digest_stream_}) {
    TORPOR_ASSIGN_OR_RETURN(*stream, driver_.CreateStream());
  }
  void* const buffer = ::mmap(nullptr, kDigestBuffer.size(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Status status = buffer == MAP_FAILED ? ErrnoStatus(errno, "map memory for digests")
                                       : driver_.RegisterHost(buffer, kDigestBuffer);
  if (!status.ok()) {
    // Every sleep copies everything then.
    log::Warning("no memory for digests: {}", status);
    if (buffer != MAP_FAILED) ::munmap(buffer, kDigestBuffer.size());
    return Status::Ok();
  }
  digests_ = static_cast<PartDigest*>(buffer);
  MutexLock lock(digests_mutex_);
  free_digests_.Put(Bytes(0), kDigestBuffer);
  return Status::Ok();
}

TransferEngine::~TransferEngine() {
  for (const StreamId stream :
       {to_host_.stream, to_device_.stream, clear_stream_, digest_stream_}) {
    if (stream != StreamId()) (void)driver_.DestroyStream(stream);
  }
  if (digests_ != nullptr) {
    (void)driver_.UnregisterHost(digests_);
    ::munmap(digests_, kDigestBuffer.size());
  }
}

// --- Clearing

Status ClearRun::Add(DeviceAddress address, Bytes size) {
  TORPOR_RETURN_IF_ERROR(engine_.driver_.Clear(engine_.clear_stream_, address, size));
  running_ = true;
  return Status::Ok();
}

Status ClearRun::Finish() {
  if (!std::exchange(running_, false)) return Status::Ok();
  const Result<EventId> event = engine_.driver_.RecordEvent(engine_.clear_stream_);
  Status status = event.ok() ? engine_.driver_.WaitEvent(*event) : event.status();
  if (!status.ok()) (void)engine_.driver_.Synchronize();
  return status;
}

// --- Digests

DigestRun::~DigestRun() {
  (void)Settle();
  MutexLock lock(engine_.digests_mutex_);
  for (const Added& added : added_) {
    engine_.free_digests_.Put(added.place, Bytes(added.parts * Bytes(sizeof(PartDigest)).value()));
  }
}

Status DigestRun::Add(DeviceAddress address, Bytes size, Bytes position) {
  if (size == Bytes(0)) return Status::Ok();
  const int64_t parts = DigestParts(size, position);
  const Bytes room(parts * Bytes(sizeof(PartDigest)).value());
  std::optional<Bytes> place;
  {
    MutexLock lock(engine_.digests_mutex_);
    place = engine_.free_digests_.Take(room);
  }
  if (!place.has_value()) {
    return ResourceExhausted("DIGEST_BUFFER_FULL", "there is no room for more digests")
        .With("parts", parts);
  }
  added_.push_back({position, *place, parts});
  PartDigest* const to = engine_.digests_ + place->size() / sizeof(PartDigest);
  TORPOR_RETURN_IF_ERROR(
      engine_.driver_.Digest(engine_.digest_stream_, to, address, size, position));
  running_ = true;
  return Status::Ok();
}

Status DigestRun::Settle() {
  if (!std::exchange(running_, false)) return Status::Ok();
  const Result<EventId> event = engine_.driver_.RecordEvent(engine_.digest_stream_);
  Status status = event.ok() ? engine_.driver_.WaitEvent(*event) : event.status();
  if (!status.ok()) (void)engine_.driver_.Synchronize();
  return status;
}

Status DigestRun::Finish(const std::function<void(Bytes, const PartDigest&)>& part) {
  TORPOR_RETURN_IF_ERROR(Settle());
  for (const Added& added : added_) {
    const PartDigest* const digests = engine_.digests_ + added.place.size() / sizeof(PartDigest);
    Bytes position = added.position;
    for (int64_t i = 0; i < added.parts; ++i) {
      part(position, digests[i]);
      position = position - position % kDigestPart + kDigestPart;
    }
  }
  return Status::Ok();
}

}  // namespace torpor
