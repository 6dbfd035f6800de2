#ifndef TORPOR_LIB_BASE_STATUS_H_
#define TORPOR_LIB_BASE_STATUS_H_

#include <cassert>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace torpor {

// What kind of failure: decides how a caller may react. The numbers are the wire format between
// daemon and workers and equal google.rpc.Code.
enum class Code : int32_t {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,   // bad argument: will fail again
  kDeadlineExceeded = 4,  // late
  kNotFound = 5,          // unknown name
  kPermissionDenied = 7,
  kResourceExhausted = 8,   // no memory, no descriptors
  kFailedPrecondition = 9,  // wrong state: fix the state first
  kAborted = 10,            // lost a race: try again
  kUnimplemented = 12,
  kInternal = 13,     // a bug
  kUnavailable = 14,  // the other side is going away
  kDataLoss = 15,     // contents are gone
};

std::string_view CodeName(Code code);

// The one error type of daemon and client. `reason` is UPPER_SNAKE_CASE and has a section in
// docs/errors.md; `details` repeats, for machines, every number that the message mentions.
// Value type; not thread-safe.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string reason, std::string message)
      : code_(code), reason_(std::move(reason)), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& reason() const { return reason_; }
  const std::string& message() const { return message_; }
  const std::map<std::string, std::string>& details() const { return details_; }

  // Adds a detail, as in Status(...).With("requested_bytes", 4096).
  Status&& With(const std::string& key, std::string value) && {
    details_[key] = std::move(value);
    return std::move(*this);
  }
  template <typename Int, typename = std::enable_if_t<std::is_integral_v<Int>>>
  Status&& With(const std::string& key, Int value) && {
    return std::move(*this).With(key, std::to_string(value));
  }
  void Add(const std::string& key, std::string value) { details_[key] = std::move(value); }

  // The detail `key` as a number; nothing where it is absent or not a number.
  std::optional<int64_t> Number(const std::string& key) const;

  // "RESOURCE_EXHAUSTED DEVICE_MEMORY_EXHAUSTED: message {requested_bytes: 4096}"
  std::string ToString() const;

  friend bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.reason_ == b.reason_ && a.message_ == b.message_ &&
           a.details_ == b.details_;
  }

 private:
  Code code_ = Code::kOk;
  std::string reason_;
  std::string message_;
  std::map<std::string, std::string> details_;
};

Status InvalidArgument(std::string reason, std::string message);
Status NotFound(std::string reason, std::string message);
Status FailedPrecondition(std::string reason, std::string message);
Status ResourceExhausted(std::string reason, std::string message);
Status Aborted(std::string reason, std::string message);
Status DeadlineExceeded(std::string reason, std::string message);
Status Unavailable(std::string reason, std::string message);
Status PermissionDenied(std::string reason, std::string message);
Status Internal(std::string reason, std::string message);

// The translator from errno: code by kind, reason "ERRNO_<NAME>", `what` names the call.
// EMFILE and ENFILE get the reason FILE_DESCRIPTORS_EXHAUSTED, so that no one takes them for a lack
// of memory.
Status ErrnoStatus(int error, std::string_view what);

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define TORPOR_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::torpor::Status torpor_status_ = (expr);        \
    if (!torpor_status_.ok()) return torpor_status_; \
  } while (false)

#define TORPOR_CONCAT_INNER_(a, b) a##b
#define TORPOR_CONCAT_(a, b) TORPOR_CONCAT_INNER_(a, b)
#define TORPOR_ASSIGN_OR_RETURN(lhs, expr) \
  TORPOR_ASSIGN_OR_RETURN_IMPL_(TORPOR_CONCAT_(torpor_result_, __LINE__), lhs, expr)
#define TORPOR_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                  \
  if (!result.ok()) return result.status();              \
  lhs = *std::move(result)

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_STATUS_H_
