#ifndef TORPOR_CLIENT_FORK_WATCH_H_
#define TORPOR_CLIENT_FORK_WATCH_H_

#include <cstdint>

#include "lib/base/status.h"

namespace torpor::client {

// How often this process is a fork of one that watched: an object made at one generation is the
// parent's at the next. 0 before the first WatchForks. Thread-safe, cheap.
uint64_t ForkGeneration();

// Installs the fork handler, once.
void WatchForks();

// A forked child closes `fd` at once: a parent that dies must look dead to the daemon while its
// children live. Keep releases the number again, before the descriptor is closed. Thread-safe.
void CloseInForkedChild(int fd);
void KeepInForkedChild(int fd);

// FAILED_PRECONDITION FORKED.
Status ForkedStatus();

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_FORK_WATCH_H_
