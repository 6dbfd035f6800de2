#include "daemon/service/grpc_status.h"

#include <limits>
#include <string>
#include <string_view>

#include "google/rpc/error_details.pb.h"
#include "lib/base/utf8.h"

namespace torpor {
namespace {

constexpr char kDomain[] = "torpor";
constexpr std::string_view kCut = " [truncated]";

// The message travels twice, once percent-encoded (up to threefold); the details travel in base64.
struct Limits {
  size_t message;
  size_t reason;
  size_t key;
  size_t value;
  size_t metadata;  // all entries, with 8 bytes for the frame of each
};
constexpr Limits kTrailers = {768, 64, 64, 256, 2048};
constexpr size_t kNone = std::numeric_limits<size_t>::max();
constexpr Limits kUnlimited = {kNone, kNone, kNone, kNone, kNone};

// Valid UTF-8 of at most `limit` bytes (which has room for kCut).
std::string Clean(std::string_view text, size_t limit) {
  std::string clean;
  size_t fits = 0;  // as much of it leaves room for kCut
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8SequenceLength(text.substr(i));
    if (length == 0) {
      clean += '?';
      ++i;
    } else {
      clean.append(text.substr(i, length));
      i += length;
    }
    if (clean.size() > limit) return clean.substr(0, fits).append(kCut);
    if (clean.size() <= limit - kCut.size()) fits = clean.size();
  }
  return clean;
}

Status Cut(const Status& status, const Limits& limits) {
  if (status.ok()) return status;
  Status cut(status.code(), Clean(status.reason(), limits.reason),
             Clean(status.message(), limits.message));
  size_t size = 0;
  bool complete = true;
  for (const auto& [key, value] : status.details()) {
    const std::string clean_key = Clean(key, limits.key);
    std::string clean_value = Clean(value, limits.value);
    const size_t entry = clean_key.size() + clean_value.size() + 8;
    if (entry > limits.metadata - size) {
      complete = false;
      continue;
    }
    size += entry;
    cut.Add(clean_key, std::move(clean_value));
  }
  if (!complete) cut.Add("details_truncated", "true");
  return cut;
}

// Of what is valid UTF-8.
google::rpc::Status Translate(const Status& status) {
  google::rpc::Status rpc;
  rpc.set_code(static_cast<int>(status.code()));
  if (status.ok()) return rpc;
  rpc.set_message(status.message());
  google::rpc::ErrorInfo info;
  info.set_reason(status.reason());
  info.set_domain(kDomain);
  for (const auto& [key, value] : status.details()) (*info.mutable_metadata())[key] = value;
  rpc.add_details()->PackFrom(info);
  return rpc;
}

}  // namespace

google::rpc::Status ToRpcStatus(const Status& status) { return Translate(Cut(status, kUnlimited)); }

Status CutToTrailers(const Status& status) { return Cut(status, kTrailers); }

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status rpc = Translate(CutToTrailers(status));
  return grpc::Status(static_cast<grpc::StatusCode>(rpc.code()), rpc.message(),
                      rpc.SerializeAsString());
}

}  // namespace torpor
