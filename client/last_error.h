#ifndef TORPOR_CLIENT_LAST_ERROR_H_
#define TORPOR_CLIENT_LAST_ERROR_H_

#include <exception>
#include <new>

#include "lib/base/status.h"

namespace torpor::client {

// Makes `status` (not OK) what torpor_last_error of this thread gives, and returns its code.
// Works at any time, also while the process exits.
int SetLastError(Status status) noexcept;

// Runs `call` (which gives a Status) and turns the outcome, exceptions included, into a return
// code.
template <typename Call>
int ReturnCode(Call call) noexcept {
  try {
    Status status = call();
    return status.ok() ? 0 : SetLastError(std::move(status));
  } catch (const std::bad_alloc&) {
    return SetLastError(ResourceExhausted("HOST_MEMORY_EXHAUSTED", "out of host memory"));
  } catch (const std::exception& error) {
    return SetLastError(Internal("EXCEPTION", error.what()));
  } catch (...) {
    return SetLastError(Internal("EXCEPTION", "unknown exception"));
  }
}

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_LAST_ERROR_H_
