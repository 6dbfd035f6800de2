#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/mutex.h"
#include "tests/bench/role.h"

namespace torpor::bench {
namespace {

constexpr auto kPause = std::chrono::microseconds(200);
constexpr size_t kRemembered = 1'000'000;

int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

class Queries {
 public:
  explicit Queries(Driver& driver) : driver_(driver), thread_([this] { Run(); }) {}
  ~Queries() {
    stop_ = true;
    thread_.join();
  }
  Queries(const Queries&) = delete;
  Queries& operator=(const Queries&) = delete;

  Result<std::string> Worst(int64_t from, int64_t to) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TORPOR_RETURN_IF_ERROR(error_);
    int64_t worst = 0;
    int64_t count = 0;
    for (const Query& query : queries_) {
      if (query.end < from || query.start > to) continue;
      worst = std::max(worst, query.end - query.start);
      ++count;
    }
    return "ms=" + std::to_string(static_cast<double>(worst) / 1e6) +
           " count=" + std::to_string(count);
  }

 private:
  struct Query {
    int64_t start = 0;
    int64_t end = 0;
  };

  void Run() EXCLUDES(mutex_) {
    while (!stop_) {
      Query query;
      query.start = Now();
      const Status status = driver_.GetMemoryInfo().status();
      query.end = Now();
      {
        MutexLock lock(mutex_);
        if (!status.ok()) error_ = status;
        queries_.push_back(query);
        if (queries_.size() > kRemembered) queries_.pop_front();
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  Driver& driver_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::deque<Query> queries_ GUARDED_BY(mutex_);
  Status error_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

int RunQuery(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return 2;
  const auto driver = OpenRoleDriver(arguments[0], MiB(2));
  if (!driver.ok()) {
    Say(driver.status());
    return 1;
  }
  const auto first = (*driver)->GetMemoryInfo();  // brings the context up
  Queries queries(**driver);
  Say(first.ok() ? Result<std::string>("ready") : first.status());
  return AnswerLines([&](const std::vector<std::string>& words) -> Result<std::string> {
    if (words[0] != "worst" || words.size() != 3) return InvalidArgument("BAD_COMMAND", words[0]);
    // What is under way will have ended.
    std::this_thread::sleep_for(2 * kPause);
    return queries.Worst(std::stoll(words[1]), std::stoll(words[2]));
  });
}

int RunTouch(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return 2;
  const TimePoint start = std::chrono::steady_clock::now();
  const auto memory = HostMemory::Map(Bytes(std::stoll(arguments[0])));
  if (!memory.ok()) {
    Say(memory.status());
    return 1;
  }
  (*memory)->Touch();
  Say("seconds=" +
      std::to_string(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()));
  return 0;
}

}  // namespace torpor::bench
