#include "daemon/log_limit.h"

#include <iterator>
#include <utility>

namespace torpor::log {
namespace {

// Of all kinds that there is no room for.
constexpr char kOthers[] = "";

}  // namespace

Limit::Kind& Limit::Find(const std::string& kind, TimePoint now) {
  if (const auto found = kinds_.find(kind); found != kinds_.end()) return found->second;
  if (kinds_.size() < options_.kinds) return kinds_[kind];
  for (auto it = kinds_.begin(); it != kinds_.end();) {
    it = now >= it->second.since + options_.interval ? kinds_.erase(it) : std::next(it);
  }
  return kinds_[kinds_.size() < options_.kinds ? kind : kOthers];
}

int64_t Limit::Count(const std::string& kind) {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.Now();
  Kind& of = Find(kind, now);
  if (of.written == 0 || now >= of.since + options_.interval) {
    of.since = now;
    of.written = 1;
    return 1 + std::exchange(of.left_out, 0);
  }
  if (of.written >= options_.lines) {
    ++of.left_out;
    return 0;
  }
  ++of.written;
  return 1;
}

std::string AndMore(int64_t count) {
  return count <= 1 ? "" : " [and " + std::to_string(count - 1) + " more like it]";
}

}  // namespace torpor::log
