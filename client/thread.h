#ifndef TORPOR_CLIENT_THREAD_H_
#define TORPOR_CLIENT_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace torpor::client {

// Starts `run` in a thread that takes no signals, so that the application's handlers run on its own
// threads only. `name` has at most 15 characters.
template <typename Run>
std::thread StartThread(const char* name, Run run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_THREAD_H_
