#ifndef TORPOR_DAEMON_SERVICE_REQUEST_LOG_H_
#define TORPOR_DAEMON_SERVICE_REQUEST_LOG_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

// What came of a request.
struct Answer {
  Status status;
  std::shared_ptr<const google::protobuf::Message> response;  // null with an error
  bool of_the_moment = false;  // though it is OK: a part failed with such an error
  bool given_up = false;       // the deadline of the caller that it ran for has ended it
};

// Requests by the ids that callers gave them, so that a call can be repeated by who does not know
// what became of it:
//
//   the id is          the caller
//   new                is the leader: it is told to start the request
//   under way          joins: it gets the leader's answer
//   answered           gets the answer that was given, for `keep` from then on
//   of another body    INVALID_ARGUMENT REQUEST_ID_REUSED
//
// Answers that speak of the moment rather than of the request are not kept (IsOfTheMoment): the
// next call with the id starts anew. Neither is INVALID_ARGUMENT, which has changed nothing and is
// made again as easily, nor answers to callers without an id, whose requests nobody joins. Of an
// error as much is kept as a caller is told.
//
// A request goes on while one of its callers waits for it; when the last one has left, its token is
// cancelled. If a request ends because its leader gave up (CANCELLED, or `given_up`), and others
// have joined, it starts again for the first of them.
//
// No id is forgotten before its time: when the memory is full, new ids are refused with
// RESOURCE_EXHAUSTED REQUEST_LOG_FULL. Thread-safe; calls callers without its lock. `clock` must
// outlive it.
class RequestLog {
 public:
  struct Limits {
    Bytes memory = MiB(64);  // about 100'000 requests
    Duration keep = std::chrono::minutes(10);
  };

  class Request;
  using RequestPtr = std::shared_ptr<Request>;

  struct Attempt {
    std::shared_ptr<CancelToken> token;
    bool again = false;  // another caller has given it up
    // What the work of all attempts at one request shares: its place in the queue, once it has one.
    std::shared_ptr<std::optional<uint64_t>> place;
  };

  // Each caller gets one Answer, unless it leaves first.
  class Caller {
   public:
    virtual ~Caller() = default;
    // Whoever is told to start has to call Finish, once, whatever the token says.
    virtual void Start(const RequestPtr& request, const Attempt& attempt) = 0;
    // `replayed`: it was another caller that the request ran for.
    virtual void Take(const Answer& answer, bool replayed) = 0;
  };
  using CallerPtr = std::shared_ptr<Caller>;

  RequestLog(const Clock& clock, const Limits& limits) : clock_(clock), limits_(limits) {}
  explicit RequestLog(const Clock& clock) : RequestLog(clock, Limits()) {}

  // `body`: equal for equal requests only, the method included; short, as a digest is. Ids of
  // different scopes have nothing to do with each other. May call `caller` before it returns.
  //   INVALID_ARGUMENT BAD_REQUEST_ID, REQUEST_ID_REUSED; RESOURCE_EXHAUSTED REQUEST_LOG_FULL
  Result<RequestPtr> Enter(const std::string& id, std::string body, const CallerPtr& caller,
                           const std::string& scope = "") EXCLUDES(mutex_);
  // The caller waits no more. True: it had joined and gets no answer; false: it has one, or is the
  // leader and gets the answer in the end.
  bool Leave(const RequestPtr& request, const Caller* caller) {
    return Leave(request, caller, true);
  }
  // The same, but a leader stays.
  bool LeaveIfJoined(const RequestPtr& request, const Caller* caller) {
    return Leave(request, caller, false);
  }
  void Finish(const RequestPtr& request, const Answer& answer) EXCLUDES(mutex_);

  // What is remembered or under way.
  Bytes memory() const EXCLUDES(mutex_);

  // Late, lost a race, going away, cancelled, or the daemon is busy: another try may well end
  // otherwise.
  static bool IsOfTheMoment(const Status& status);

 private:
  bool Leave(const RequestPtr& request, const Caller* caller, bool leader) EXCLUDES(mutex_);
  void Forget() REQUIRES(mutex_);

  const Clock& clock_;
  const Limits limits_;
  mutable Mutex mutex_;
  std::map<std::string, RequestPtr> requests_ GUARDED_BY(mutex_);
  std::deque<RequestPtr> answered_ GUARDED_BY(mutex_);  // the oldest first
  Bytes memory_ GUARDED_BY(mutex_){};
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_REQUEST_LOG_H_
