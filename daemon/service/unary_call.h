#ifndef TORPOR_DAEMON_SERVICE_UNARY_CALL_H_
#define TORPOR_DAEMON_SERVICE_UNARY_CALL_H_

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/log_limit.h"
#include "daemon/service/request_log.h"
#include "lib/base/cancel_token.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"

namespace torpor {

// One call of the control plane, from its admission to its answer. A call that gRPC cancels (by its
// caller, its deadline or its connection) leaves its request; if its answer was made already and
// gRPC has not sent it, what it gives is taken back. Thread-safe; owns itself until OnDone.
class UnaryCall final : public grpc::ServerUnaryReactor,
                        public RequestLog::Caller,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  // Begins what was asked for, without blocking. `done` is to be called once, by any thread.
  using Work = std::function<void(const RequestLog::Attempt& attempt,
                                  const std::function<void(const Answer&)>& done)>;
  using TakeBack = std::function<void(const google::protobuf::Message& response)>;
  struct Setup {
    RequestLog* log = nullptr;
    const char* method = "";
    std::string peer;                                // for the log
    std::string caller;                              // likewise, the same for all its connections
    log::Limit* failures = nullptr;                  // of its lines; null: all are written
    std::string scope;                               // of its request id
    std::chrono::system_clock::time_point deadline;  // when a call that has joined gives up
    google::protobuf::Message* response = nullptr;   // gRPC's, until OnDone
    Work work;
    std::function<void(const Status&)> answered;  // once the answer, with this, is on its way
    // Takes back what was given to a caller that has gone; where it may be: null otherwise.
    TakeBack take_back;
  };
  // Answers right away where the log refuses the request.
  static UnaryCall* Begin(const std::string& request_id, std::string body, Setup setup);

  void Start(const RequestLog::RequestPtr& request, const RequestLog::Attempt& attempt) override
      EXCLUDES(mutex_);
  void Take(const Answer& answer, bool replayed) override EXCLUDES(mutex_);

 private:
  explicit UnaryCall(Setup setup) : setup_(std::move(setup)) {}
  void OnCancel() override EXCLUDES(mutex_);
  void OnDone() override EXCLUDES(mutex_);
  void OnDeadline() EXCLUDES(mutex_);

  const Setup setup_;
  std::shared_ptr<UnaryCall> self_;
  Mutex mutex_;
  RequestLog::RequestPtr request_ GUARDED_BY(mutex_);
  bool leads_ GUARDED_BY(mutex_) = false;
  bool answered_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<const google::protobuf::Message> given_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
  grpc::Alarm deadline_;  // of a call that has joined
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_UNARY_CALL_H_
