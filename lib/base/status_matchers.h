#ifndef TORPOR_LIB_BASE_STATUS_MATCHERS_H_
#define TORPOR_LIB_BASE_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include <ostream>
#include <string>

#include "lib/base/status.h"

namespace torpor {

inline void PrintTo(const Status& status, std::ostream* os) { *os << status.ToString(); }
template <typename T>
void PrintTo(const Result<T>& result, std::ostream* os) {
  *os << (result.ok() ? "a value" : result.status().ToString());
}

namespace internal {
inline const Status& ToStatus(const Status& status) { return status; }
template <typename T>
const Status& ToStatus(const Result<T>& result) {
  return result.status();
}
}  // namespace internal

// Matchers of a Status or a Result: EXPECT_THAT(driver.Unmap(...), HasReason("...")).
MATCHER(IsOk, "") { return internal::ToStatus(arg).ok(); }
MATCHER_P(HasReason, reason, "") { return internal::ToStatus(arg).reason() == reason; }
MATCHER_P(HasCode, code, "") { return internal::ToStatus(arg).code() == code; }

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_STATUS_MATCHERS_H_
