#include "client/fork_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

namespace torpor::client {
namespace {

// Read by a fork handler, which may take no lock. Slots hold fd + 1; a process with more sessions
// than slots only loses the early close.
std::array<std::atomic<int>, 64> child_closes;
std::atomic<uint64_t> generation{0};

void InChild() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (std::atomic<int>& slot : child_closes) {
    const int fd = slot.exchange(0, std::memory_order_relaxed) - 1;
    if (fd >= 0) ::close(fd);
  }
}

}  // namespace

uint64_t ForkGeneration() { return generation.load(std::memory_order_relaxed); }

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] { ::pthread_atfork(nullptr, nullptr, &InChild); });
}

void CloseInForkedChild(int fd) {
  for (std::atomic<int>& slot : child_closes) {
    int empty = 0;
    if (slot.compare_exchange_strong(empty, fd + 1)) return;
  }
}

void KeepInForkedChild(int fd) {
  for (std::atomic<int>& slot : child_closes) {
    int expected = fd + 1;
    if (slot.compare_exchange_strong(expected, 0)) return;
  }
}

Status ForkedStatus() {
  return FailedPrecondition("FORKED",
                            "the session belongs to the process that this one was forked from")
      .With("pid", ::getpid())
      .With("parent_pid", ::getppid());
}

}  // namespace torpor::client
