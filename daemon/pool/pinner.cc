#include "daemon/pool/pinner.h"

#include <algorithm>
#include <utility>

#include "daemon/log.h"
#include "daemon/pool/cpus.h"

namespace torpor {
namespace {

constexpr Bytes kPart = MiB(4);         // what a thread populates at a time
constexpr size_t kAhead = 4;            // demanded slabs in the pipeline
constexpr size_t kBackgroundAhead = 2;  // slabs in the pipeline when none is demanded
constexpr Duration kPoll = milliseconds(5);
constexpr Duration kLongestRetry = std::chrono::minutes(10);

}  // namespace

Pinner::Pinner(Driver& driver, const PoolMemory& memory, Options options)
    : driver_(driver),
      memory_(memory),
      options_(std::move(options)),
      cpus_(CpusOfNode(options_.numa_node)),
      slabs_(memory.slabs()),
      retry_after_(options_.retry) {
  const int cpus = static_cast<int>(cpus_.size());
  // One is for the thread that registers.
  threads_ = options_.threads > 0 ? options_.threads : std::clamp(cpus * 3 / 4, 1, 16);
  background_threads_ = std::clamp(cpus / 4, 1, std::min(4, threads_));
}

Pinner::~Pinner() {
  std::vector<std::thread> running;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    running.swap(running_);
  }
  to_populate_.NotifyAll();
  to_register_.NotifyAll();
  for (std::thread& thread : running) thread.join();
  Order order;
  Refresh(order);
  for (const size_t slab : order.slabs) {
    if (IsPinned(slab)) (void)driver_.UnregisterHost(memory_.data(slab));
  }
}

// --- what is asked

void Pinner::Demand(const std::vector<size_t>& slabs) {
  MutexLock lock(mutex_);
  for (const size_t slab : slabs) DemandLocked(slab);
}

void Pinner::DemandLocked(size_t slab) {
  Slab& s = slabs_[slab];
  if (s.demanded || s.state == State::kPinned) return;
  s.demanded = true;
  ++demanded_;
  ++version_;
  if (s.state == State::kReserved || s.state == State::kDropping) queue_.push_back(slab);
  (void)StartThreads();  // Await says so
  to_populate_.NotifyAll();
  to_register_.NotifyOne();
}

Status Pinner::Await(size_t slab, const std::function<Status()>& interrupt) {
  int failures = -1;
  for (;;) {
    {
      MutexLock lock(mutex_);
      const Slab& s = slabs_[slab];
      if (s.state == State::kPinned) return Status::Ok();
      if (failures < 0) failures = s.failures;
      if (s.failures != failures) return s.error;
      DemandLocked(slab);
      TORPOR_RETURN_IF_ERROR(StartThreads());
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kPoll);
    }
    if (interrupt != nullptr) TORPOR_RETURN_IF_ERROR(interrupt());
  }
}

void Pinner::Keep(size_t slab) {
  MutexLock lock(mutex_);
  slabs_[slab].keep = true;
}

bool Pinner::IsPinned(size_t slab) const {
  MutexLock lock(mutex_);
  return slabs_[slab].state == State::kPinned;
}

void Pinner::StartBackground() {
  MutexLock lock(mutex_);
  background_ = true;
  registered_at_ = std::chrono::steady_clock::now();
  if (AllPinned()) return;
  if (const Status started = StartThreads(); !started.ok()) {
    log::Warning("host pool: not pinned in the background: {}", started);
  }
  to_populate_.NotifyAll();
  to_register_.NotifyOne();
}

void Pinner::Yield() {
  MutexLock lock(mutex_);
  yield_until_ = std::chrono::steady_clock::now() + options_.yield;
}

TimePoint Pinner::MayRegister(size_t slab) const {
  if (slabs_[slab].demanded) return breathe_until_;
  const TimePoint yield = std::min(yield_until_, registered_at_ + options_.most_yield);
  return std::max({breathe_until_, rest_until_, yield});
}

Pinner::Stats Pinner::stats() const {
  MutexLock lock(mutex_);
  Stats stats;
  stats.pinned = pinned_;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].demanded) stats.demanded += memory_.size(i);
    if (!slabs_[i].error.ok()) stats.refused += memory_.size(i);
  }
  stats.pinning =
      !pipeline_.empty() || demanded_ > 0 || (background_ && !AllPinned() && !BackingOff());
  stats.last_error = last_error_;
  return stats;
}

void Pinner::Refresh(Order& order) const {
  MutexLock lock(mutex_);
  if (order.version == version_) return;
  order.version = version_;
  order.slabs.clear();
  std::vector<bool> listed(slabs_.size());
  const auto list = [&](size_t slab) {
    if (!listed[slab]) order.slabs.push_back(slab);
    listed[slab] = true;
  };
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].state == State::kPinned) list(i);
  }
  for (const std::deque<size_t>* next : {&pipeline_, &queue_}) {
    for (const size_t i : *next) {
      if (slabs_[i].error.ok()) list(i);
    }
  }
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].error.ok()) list(i);
  }
  order.sound = order.slabs.size();
  for (size_t i = 0; i < slabs_.size(); ++i) list(i);
}

// --- the pipeline

Status Pinner::StartThreads() {
  if (!running_.empty()) return Status::Ok();
  TORPOR_ASSIGN_OR_RETURN(std::thread registrar, options_.start_thread([this] { RunRegistrar(); }));
  running_.push_back(std::move(registrar));
  for (int i = 0; i < threads_; ++i) {
    Result<std::thread> populator = options_.start_thread([this, i] { RunPopulator(i); });
    if (!populator.ok()) break;  // fewer do it, too
    running_.push_back(*std::move(populator));
    populators_ = true;
  }
  return Status::Ok();
}

bool Pinner::BackingOff() const {
  return background_ && std::chrono::steady_clock::now() < retry_at_;
}

bool Pinner::Admit() {
  size_t slab = slabs_.size();
  if (Hurried()) {
    size_t ahead = 0;
    for (const size_t i : pipeline_) ahead += slabs_[i].demanded ? 1 : 0;
    auto ready = queue_.begin();
    while (ready != queue_.end() && slabs_[*ready].state != State::kReserved) ++ready;
    if (ahead >= kAhead || ready == queue_.end()) return false;
    slab = *ready;
    queue_.erase(ready);
  } else {
    if (!background_ || pipeline_.size() >= kBackgroundAhead || BackingOff()) {
      return false;
    }
    for (size_t i = 0; i < slabs_.size(); ++i) {
      if (slabs_[i].state != State::kReserved) continue;
      // One that was refused is the last, so that it does not keep the others waiting.
      if (slab == slabs_.size() || slabs_[i].failures < slabs_[slab].failures) slab = i;
    }
    if (slab == slabs_.size()) return false;
  }
  Slab& s = slabs_[slab];
  s.state = State::kPopulating;
  s.checked = options_.available == nullptr;
  s.next = Bytes(0);
  s.trouble = Status::Ok();
  pipeline_.push_back(slab);
  ++version_;
  return true;
}

bool Pinner::TakePart(int thread, Part& part) {
  const bool hurried = Hurried();
  if (!hurried && thread >= background_threads_) return false;
  do {
    for (const size_t i : pipeline_) {
      Slab& s = slabs_[i];
      if (s.state != State::kPopulating || (hurried && !s.demanded)) continue;
      if (!s.checked) {
        if (s.parts > 0) continue;
        part = {i, Bytes(0), Bytes(0)};
      } else {
        if (s.next >= memory_.size(i)) continue;
        part = {i, s.next, std::min(kPart, memory_.size(i) - s.next)};
        s.next += part.size;
      }
      ++s.parts;
      return true;
    }
  } while (Admit());
  return false;
}

Status Pinner::Populate(const Part& part) {
  if (part.size > Bytes(0)) return memory_.Populate(part.slab, part.offset, part.size);
  const Result<Bytes> available = options_.available();
  if (!available.ok()) return Status::Ok();
  Bytes needed = memory_.size(part.slab);
  {
    // Those that are populated now are not taken yet.
    MutexLock lock(mutex_);
    for (const size_t i : pipeline_) {
      if (i != part.slab && slabs_[i].state == State::kPopulating && slabs_[i].checked) {
        needed += memory_.size(i);
      }
    }
  }
  if (*available >= needed) return Status::Ok();
  return ResourceExhausted(
             "HOST_MEMORY_EXHAUSTED",
             "the machine or the cgroup has no more host memory: " + FormatBytes(needed) +
                 " needed, " + FormatBytes(*available) + " available")
      .With("requested_bytes", needed.value())
      .With("available_bytes", available->value());
}

void Pinner::Populated(const Part& part, const Status& status) {
  Slab& s = slabs_[part.slab];
  --s.parts;
  if (part.size == Bytes(0) && status.ok()) {
    s.checked = true;
    to_populate_.NotifyAll();
    return;
  }
  if (!status.ok()) {
    s.next = memory_.size(part.slab);
    s.trouble = status;
  }
  if (s.next < memory_.size(part.slab) || s.parts > 0) return;
  if (!s.trouble.ok()) {
    Refuse(part.slab, Status(s.trouble));
    return;
  }
  s.state = State::kPopulated;
  to_register_.NotifyOne();
}

size_t Pinner::NextToRegister() const {
  const bool hurried = Hurried();
  for (const size_t i : pipeline_) {
    if (slabs_[i].state == State::kPopulated && slabs_[i].demanded == hurried) return i;
  }
  return slabs_.size();
}

void Pinner::Leave(size_t slab) {
  Slab& s = slabs_[slab];
  if (s.demanded) --demanded_;
  s.demanded = false;
  pipeline_.erase(std::find(pipeline_.begin(), pipeline_.end(), slab));
  ++version_;
  changed_.NotifyAll();
  to_populate_.NotifyAll();
  to_register_.NotifyOne();  // what it passed over for one that is demanded
}

void Pinner::Registered(size_t slab) {
  Slab& s = slabs_[slab];
  const TimePoint now = std::chrono::steady_clock::now();
  registered_at_ = now;
  breathe_until_ = now + options_.breath;
  if (!s.demanded) rest_until_ = now + options_.pause;
  s.state = State::kPinned;
  s.error = Status::Ok();
  pinned_ += memory_.size(slab);
  ++pinned_slabs_;
  retry_at_ = TimePoint();
  retry_after_ = options_.retry;
  bool refused = false;
  for (const Slab& any : slabs_) refused = refused || !any.error.ok();
  if (!refused) {
    last_error_ = Status::Ok();
    logged_ = false;
  }
  Leave(slab);
  if (AllPinned() && background_)
    log::Info("host pool: {} pinned, all of it", FormatBytes(pinned_));
}

void Pinner::Refuse(size_t slab, const Status& why) {
  Slab& s = slabs_[slab];
  s.state = State::kDropping;
  if (!s.keep) {
    mutex_.Unlock();
    memory_.Drop(slab);
    mutex_.Lock();
  }
  s.state = State::kReserved;
  s.error = why;
  ++s.failures;
  last_error_ = why;
  retry_at_ = std::chrono::steady_clock::now() + retry_after_;
  retry_after_ = std::min(retry_after_ * 2, kLongestRetry);
  if (!std::exchange(logged_, true)) {
    log::Warning("host pool: {} of {} pinned, then refused: {}", FormatBytes(pinned_),
                 FormatBytes(memory_.size()), why);
  }
  // Whoever still waits for the others demands them anew.
  for (const size_t other : queue_) {
    slabs_[other].demanded = false;
    --demanded_;
  }
  queue_.clear();
  Leave(slab);
}

void Pinner::RunPopulator(int thread) {
  if (options_.numa_node >= 0) RunOn(cpus_);
  MutexLock lock(mutex_);
  while (!stop_ && !AllPinned()) {
    Part part;
    if (TakePart(thread, part)) {
      mutex_.Unlock();
      const Status status = Populate(part);
      mutex_.Lock();
      Populated(part, status);
    } else if (thread == 0 && BackingOff()) {
      to_populate_.WaitUntil(mutex_, retry_at_);
    } else {
      to_populate_.Wait(mutex_);
    }
  }
}

void Pinner::RunRegistrar() {
  if (options_.numa_node >= 0) RunOn(cpus_);
  MutexLock lock(mutex_);
  while (!stop_ && !AllPinned()) {
    const size_t slab = NextToRegister();
    Part part;
    const bool any = slab < slabs_.size();
    const TimePoint begin = any ? MayRegister(slab) : TimePoint();
    if (any && std::chrono::steady_clock::now() >= begin) {
      slabs_[slab].state = State::kRegistering;
      mutex_.Unlock();
      const Status status = driver_.RegisterHost(memory_.data(slab), memory_.size(slab));
      mutex_.Lock();
      if (status.ok()) {
        Registered(slab);
      } else {
        Refuse(slab, status);
      }
    } else if (!populators_ && TakePart(0, part)) {
      mutex_.Unlock();
      const Status status = Populate(part);
      mutex_.Lock();
      Populated(part, status);
    } else if (any) {
      to_register_.WaitUntil(mutex_, begin);
    } else if (!populators_ && BackingOff()) {
      to_register_.WaitUntil(mutex_, retry_at_);
    } else {
      to_register_.Wait(mutex_);
    }
  }
}

}  // namespace torpor
