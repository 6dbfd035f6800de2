#include "lib/base/status.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace torpor {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kAborted:
      return "ABORTED";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kDataLoss:
      return "DATA_LOSS";
  }
  return "UNKNOWN";
}

std::optional<int64_t> Status::Number(const std::string& key) const {
  const auto it = details_.find(key);
  if (it == details_.end() || it->second.empty()) return std::nullopt;
  char* end = nullptr;
  const int64_t value = std::strtoll(it->second.c_str(), &end, 10);
  if (*end != '\0') return std::nullopt;
  return value;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text(CodeName(code_));
  text.append(" ").append(reason_).append(": ").append(message_);
  const char* separator = " {";
  for (const auto& [key, value] : details_) {
    text.append(separator).append(key).append(": ").append(value);
    separator = ", ";
  }
  if (!details_.empty()) text.append("}");
  return text;
}

Status InvalidArgument(std::string reason, std::string message) {
  return Status(Code::kInvalidArgument, std::move(reason), std::move(message));
}
Status NotFound(std::string reason, std::string message) {
  return Status(Code::kNotFound, std::move(reason), std::move(message));
}
Status FailedPrecondition(std::string reason, std::string message) {
  return Status(Code::kFailedPrecondition, std::move(reason), std::move(message));
}
Status ResourceExhausted(std::string reason, std::string message) {
  return Status(Code::kResourceExhausted, std::move(reason), std::move(message));
}
Status Aborted(std::string reason, std::string message) {
  return Status(Code::kAborted, std::move(reason), std::move(message));
}
Status DeadlineExceeded(std::string reason, std::string message) {
  return Status(Code::kDeadlineExceeded, std::move(reason), std::move(message));
}
Status Unavailable(std::string reason, std::string message) {
  return Status(Code::kUnavailable, std::move(reason), std::move(message));
}
Status PermissionDenied(std::string reason, std::string message) {
  return Status(Code::kPermissionDenied, std::move(reason), std::move(message));
}
Status Internal(std::string reason, std::string message) {
  return Status(Code::kInternal, std::move(reason), std::move(message));
}

Status ErrnoStatus(int error, std::string_view what) {
  Code code = Code::kInternal;
  std::string reason;
  switch (error) {
    case EMFILE:
    case ENFILE:
      code = Code::kResourceExhausted;
      reason = "FILE_DESCRIPTORS_EXHAUSTED";
      break;
    case ENOMEM:
    case ENOSPC:
    case ENOBUFS:
      code = Code::kResourceExhausted;
      break;
    case EINVAL:
      code = Code::kInvalidArgument;
      break;
    case ENOENT:
      code = Code::kNotFound;
      break;
    case EACCES:
    case EPERM:
      code = Code::kPermissionDenied;
      break;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ENOTCONN:
      code = Code::kUnavailable;
      break;
    case EAGAIN:
    case ETIMEDOUT:
      code = Code::kDeadlineExceeded;
      break;
    default:
      break;
  }
  if (reason.empty()) {
    const char* name = strerrorname_np(error);
    reason = std::string("ERRNO_") + (name != nullptr ? name : std::to_string(error));
  }
  std::string message(what);
  message.append(": ").append(strerrordesc_np(error) != nullptr ? strerrordesc_np(error)
                                                                : "unknown error");
  return Status(code, std::move(reason), std::move(message)).With("errno", error);
}

}  // namespace torpor
