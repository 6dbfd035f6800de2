#include "daemon/service/request_log.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/service/grpc_status.h"
#include "lib/base/utf8.h"

namespace torpor {
namespace {

constexpr size_t kLongestId = 128;
// Limits of the daemon, not of what it gives out.
constexpr std::string_view kBusy[] = {"TOO_MANY_CALLS", "TOO_MANY_RESERVATIONS", "QUEUE_FULL",
                                      "THREADS_EXHAUSTED"};
// Of a request besides its texts, by estimate.
constexpr Bytes kOverhead{512};

Status CheckId(const std::string& id) {
  const bool printable =
      std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (printable && id.size() <= kLongestId) return Status::Ok();
  return InvalidArgument("BAD_REQUEST_ID",
                         "a request id is 1 to 128 printable ASCII characters without spaces")
      .With("length", id.size());
}

Bytes SizeOf(const Answer& answer) {
  Bytes size(static_cast<int64_t>(answer.status.message().size()));
  for (const auto& [key, value] : answer.status.details()) {
    size += Bytes(static_cast<int64_t>(key.size() + value.size() + 96));
  }
  if (answer.response != nullptr) {
    size += Bytes(static_cast<int64_t>(answer.response->SpaceUsedLong()));
  }
  return size;
}

}  // namespace

// The fields are guarded by the log's mutex.
class RequestLog::Request {
 public:
  std::string id;  // empty: nobody else can find it
  std::string body;
  CallerPtr leader;  // null once it is answered
  bool leader_left = false;
  std::deque<CallerPtr> joined;
  std::shared_ptr<CancelToken> token = std::make_shared<CancelToken>();
  const std::shared_ptr<std::optional<uint64_t>> place =
      std::make_shared<std::optional<uint64_t>>();
  bool answered = false;
  Answer answer;
  TimePoint answered_at;
  Bytes size{};
};

Result<RequestLog::RequestPtr> RequestLog::Enter(const std::string& id, std::string body,
                                                 const CallerPtr& caller,
                                                 const std::string& scope) {
  if (!id.empty()) TORPOR_RETURN_IF_ERROR(CheckId(id));
  // No id has a space.
  const std::string name = id.empty() || scope.empty() ? id : scope + ' ' + id;
  RequestPtr request;
  Answer answer;
  bool starts = false;
  {
    MutexLock lock(mutex_);
    Forget();
    const auto known = id.empty() ? requests_.end() : requests_.find(name);
    if (known != requests_.end()) {
      request = known->second;
      if (request->body != body) {
        return InvalidArgument("REQUEST_ID_REUSED",
                               "the request id " + Shorten(id) + " was given to another request")
            .With("request_id", id);
      }
      if (!request->answered) {
        request->joined.push_back(caller);
        return request;
      }
      answer = request->answer;
    } else {
      request = std::make_shared<Request>();
      request->id = name;
      request->leader = caller;
      starts = true;
      if (!id.empty()) {
        request->size = kOverhead + Bytes(static_cast<int64_t>(2 * name.size() + body.size()));
        if (memory_ + request->size > limits_.memory) {
          return ResourceExhausted("REQUEST_LOG_FULL",
                                   "as many request ids are remembered as there is room for")
              .With("used_bytes", memory_.value())
              .With("budget_bytes", limits_.memory.value());
        }
        request->body = std::move(body);
        memory_ += request->size;
        requests_[name] = request;
      }
    }
  }
  if (starts) {
    caller->Start(request, {request->token, false, request->place});
  } else {
    caller->Take(answer, true);
  }
  return request;
}

bool RequestLog::Leave(const RequestPtr& request, const Caller* caller, bool leader) {
  std::shared_ptr<CancelToken> unwanted;
  bool joined = false;
  {
    MutexLock lock(mutex_);
    if (request->answered) return false;
    if (request->leader.get() == caller) {
      if (!leader) return false;
      request->leader_left = true;
    } else {
      const auto found = std::find_if(request->joined.begin(), request->joined.end(),
                                      [&](const CallerPtr& one) { return one.get() == caller; });
      if (found == request->joined.end()) return false;
      request->joined.erase(found);
      joined = true;
    }
    if (request->leader_left && request->joined.empty()) unwanted = request->token;
  }
  if (unwanted != nullptr) {
    unwanted->Cancel(Status(Code::kCancelled, "OPERATION_CANCELLED",
                            "the call was cancelled before the operation's commit"));
  }
  return joined;
}

void RequestLog::Finish(const RequestPtr& request, const Answer& answer) {
  CallerPtr leader;
  CallerPtr next_leader;
  std::shared_ptr<CancelToken> next_token;
  std::deque<CallerPtr> joined;
  {
    MutexLock lock(mutex_);
    leader = std::exchange(request->leader, nullptr);
    request->leader_left = false;
    const bool given_up = answer.given_up || answer.status.code() == Code::kCancelled;
    if (given_up && !request->joined.empty()) {
      request->leader = next_leader = std::move(request->joined.front());
      request->joined.pop_front();
      request->token = next_token = std::make_shared<CancelToken>();
    } else {
      joined.swap(request->joined);
      request->answered = true;
      const Code code = answer.status.code();
      if (answer.of_the_moment || IsOfTheMoment(answer.status) || code == Code::kInvalidArgument) {
        if (requests_.erase(request->id) > 0) memory_ -= request->size;
      } else if (!request->id.empty()) {
        request->answer = answer;
        request->answer.status = CutToTrailers(answer.status);
        const Bytes size = SizeOf(request->answer);
        request->size += size;
        memory_ += size;
        request->answered_at = clock_.Now();
        answered_.push_back(request);
      }
    }
  }
  leader->Take(answer, false);
  for (const CallerPtr& caller : joined) caller->Take(answer, true);
  if (next_leader != nullptr) next_leader->Start(request, {next_token, true, request->place});
}

Bytes RequestLog::memory() const {
  MutexLock lock(mutex_);
  return memory_;
}

bool RequestLog::IsOfTheMoment(const Status& status) {
  switch (status.code()) {
    case Code::kCancelled:
    case Code::kDeadlineExceeded:
    case Code::kAborted:
    case Code::kUnavailable:
      return true;
    case Code::kResourceExhausted:
      return std::find(std::begin(kBusy), std::end(kBusy), status.reason()) != std::end(kBusy);
    default:
      return false;
  }
}

void RequestLog::Forget() {
  const TimePoint now = clock_.Now();
  while (!answered_.empty() && now - answered_.front()->answered_at >= limits_.keep) {
    memory_ -= answered_.front()->size;
    requests_.erase(answered_.front()->id);
    answered_.pop_front();
  }
}

}  // namespace torpor
