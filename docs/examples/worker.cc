// A worker: weights in device memory that the daemon owns, and a loop that uses them. Others may put
// it to sleep and wake it up at any time: the loop waits, and goes on with the same bytes at the same
// address.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "torpor.hpp"

int main() {
  try {
    torpor_options options = TORPOR_OPTIONS_INIT;
    options.name = "hello";
    options.quiesce = TORPOR_QUIESCE_GUARD;  // submits work only inside the work guard
    torpor::Session session(options);

    const std::vector<char> file(8 << 20, 7);  // stands for a checkpoint
    void* const weights = session.Allocate("weights", file.size());
    session.CopyToDevice(weights, file.data(), file.size());
    void* const kv_cache = session.Allocate("kv_cache", 16 << 20);
    std::printf("weights at %p, KV cache at %p\n", weights, kv_cache);

    for (int step = 0; step < 600; ++step) {
      {
        const torpor::WorkGuard work(session);  // waits while any tag is asleep
        // Launch kernels on weights and kv_cache here. To copy is work as well:
        char byte = 0;
        session.CopyFromDevice(&byte, weights, 1);
        std::printf("step %d: the weights say %d\n", step, byte);
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  } catch (const torpor::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
