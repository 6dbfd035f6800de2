#include "daemon/log_limit.h"

#include <iterator>
#include <set>

#include "daemon/operation/tasks.h"

namespace torpor::log {
namespace {

// Of all kinds that there is no room for.
constexpr char kOthers[] = "";
constexpr Duration kTick = seconds(1);

// Never destroyed: a Limit may end after main.
struct Registry {
  Mutex mutex;  // before that of a Limit
  std::set<Limit*> limits GUARDED_BY(mutex);
};
Registry& All() {
  static auto* const all = new Registry;
  return *all;
}

}  // namespace

Limit::Limit(const Options& options, const Clock& clock) : options_(options), clock_(clock) {
  Registry& all = All();
  MutexLock lock(all.mutex);
  all.limits.insert(this);
}

Limit::~Limit() {
  {
    Registry& all = All();
    MutexLock lock(all.mutex);
    all.limits.erase(this);
  }
  Tell(TakeRest(true));
}

void Limit::TellAll(bool also_of_open_intervals) {
  std::vector<Line> rest;
  {
    Registry& all = All();
    MutexLock lock(all.mutex);
    for (Limit* const limit : all.limits) {
      for (Line& line : limit->TakeRest(also_of_open_intervals)) rest.push_back(std::move(line));
    }
  }
  Tell(rest);
}

void Limit::Tell(const std::vector<Line>& lines) {
  for (const Line& line : lines) {
    WriteAsIs(line.level, line.count <= 1 ? line.text
                                          : line.text + " [and " + std::to_string(line.count - 1) +
                                                " more like it]");
  }
}

std::vector<Limit::Line> Limit::TakeRest(bool also_of_open_intervals) {
  MutexLock lock(mutex_);
  std::vector<Line> rest;
  TakeRest(clock_.Now(), also_of_open_intervals, rest);
  return rest;
}

void Limit::TakeRest(TimePoint now, bool also_of_open_intervals, std::vector<Line>& to) {
  for (auto it = kinds_.begin(); it != kinds_.end();) {
    Kind& kind = it->second;
    const bool over = now >= kind.since + options_.interval;
    if (kind.left_out.count == 0) {
      it = over ? kinds_.erase(it) : std::next(it);
      continue;
    }
    if (over || also_of_open_intervals) {
      to.push_back(std::exchange(kind.left_out, Line()));
      // It is the first of another interval.
      kind.since = now;
      kind.written = 1;
    }
    ++it;
  }
}

Limit::Kind& Limit::Find(const std::string& kind) {
  const auto found = kinds_.find(kind);
  if (found != kinds_.end()) return found->second;
  return kinds_[kinds_.size() < options_.kinds ? kind : kOthers];
}

void Limit::Add(Level level, const std::string& kind, const std::string& line) {
  Line shown = {level, OneLine(line), 1};
  std::vector<Line> due;
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_.Now();
    if (kinds_.size() >= options_.kinds && kinds_.count(kind) == 0) TakeRest(now, false, due);
    Kind& of = Find(kind);
    if (of.written == 0 || now >= of.since + options_.interval) {
      of.since = now;
      of.written = 0;
    }
    shown.count += std::exchange(of.left_out.count, 0);
    if (of.written < options_.lines) {
      ++of.written;
      due.push_back(std::move(shown));
    } else {
      of.left_out = std::move(shown);
    }
  }
  Tell(due);
}

Status RestTeller::Start() {
  TORPOR_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return Status::Ok();
}

RestTeller::~RestTeller() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  Limit::TellAll(true);
}

void RestTeller::Run() {
  for (;;) {
    Limit::TellAll(false);
    MutexLock lock(mutex_);
    const TimePoint next = Clock::Real().Now() + kTick;
    while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
    }
    if (stopping_) return;
  }
}

}  // namespace torpor::log
