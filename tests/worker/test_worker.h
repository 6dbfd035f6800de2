#ifndef TORPOR_TESTS_WORKER_TEST_WORKER_H_
#define TORPOR_TESTS_WORKER_TEST_WORKER_H_

#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/torpor.h"

namespace torpor {

// A worker that does what it is told, one line at a time, through the C interface. Device memory is
// that of a host device, so it is touched directly. Commands and their answers are listed in
// main.cc. Commands come from one thread; those that were sent to the background run beside it.
class TestWorker {
 public:
  TestWorker() = default;
  ~TestWorker();
  TestWorker(const TestWorker&) = delete;
  TestWorker& operator=(const TestWorker&) = delete;

  // "ok ..." or "error CODE REASON message {details}", without a line's end.
  std::string Do(const std::string& line);

  // Frees every segment, as a program's exit handlers do.
  void FreeAll();

 private:
  using Words = std::vector<std::string>;
  struct Segment {
    char* address = nullptr;
    int64_t size = 0;
    std::string tag;
    std::optional<uint64_t> seed;  // what it was filled with
  };

  std::string Connect(const Words& words);
  std::string Allocate(const Words& words);
  std::string Fill(const Words& words);
  std::string Check(const Words& words, bool zero);
  std::string Forget(const Words& words);
  std::string Address(const Words& words);
  std::string Free(const Words& words, bool elsewhere);
  std::string Sleep(const Words& words);
  std::string SleepPolicies(const Words& words);
  std::string WakeUp(const Words& words);
  std::string Usage();
  std::string Segments();
  std::string StartWork(const Words& words);
  std::string StopWork();
  std::string Iterations();
  std::string GuardBegin(const Words& words);
  std::string SetQuiesce(const Words& words);
  std::string SetSleepEndpoint(const Words& words);
  std::string SetCallbacks(const Words& words);
  std::string Fork();
  std::string Background(const std::string& line);
  std::string Wait();
  std::string Dispatch(const Words& words);

  static int OnPause(void* self);
  static void OnResume(void* self);
  void Work();
  std::optional<Segment> Find(const Words& words);

  torpor_session* session_ = nullptr;
  std::mutex mutex_;  // the segments; held while work touches them, so none is freed under it
  std::map<uint64_t, Segment> segments_;
  uint64_t last_id_ = 0;

  std::vector<std::thread> work_;
  std::atomic<bool> working_{false};
  std::atomic<int64_t> iterations_{0};
  std::atomic<int64_t> wrong_bytes_{0};

  std::atomic<int> pause_answer_{0};
  std::atomic<int> pause_ms_{0};
  std::atomic<int> paused_{0};
  std::atomic<int> resumed_{0};

  std::future<std::string> background_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_WORKER_TEST_WORKER_H_
