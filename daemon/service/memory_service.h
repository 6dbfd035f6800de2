#ifndef TORPOR_DAEMON_SERVICE_MEMORY_SERVICE_H_
#define TORPOR_DAEMON_SERVICE_MEMORY_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/access/gate.h"
#include "daemon/access/policy.h"
#include "daemon/core/core.h"
#include "daemon/events/answer_observer.h"
#include "daemon/log_limit.h"
#include "daemon/operation/tasks.h"
#include "daemon/service/request_log.h"
#include "daemon/service/unary_call.h"
#include "daemon/service/watch_hub.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {

// torpor.v1.MemoryService on a Core: only converts. Core blocks, so calls run on threads of their
// own, at most kMaxThreads at a time; those that wait, for memory or for another call's answer,
// take none. What is more is refused (RESOURCE_EXHAUSTED TOO_MANY_CALLS). Requests with an id go
// through a RequestLog. Thread-safe. The core and `clock` must
// outlive it, and it the server.
class MemoryServiceImpl final : public v1::MemoryService::CallbackService {
 public:
  static constexpr int kMaxThreads = 256;
  static constexpr int kMaxCalls = 4096;

  // Refuses all calls until Serve (UNAVAILABLE DAEMON_STARTING).
  // `default_time`: how long Sleep and WakeUp may take when the caller sets no deadline.
  // `hand_over` begins the end of the daemon in favour of one that follows, or says why not.
  // `observer`, which may be null, hears of all answers but those of Watch, and of calls of that
  // which are refused for want of a role; it outlives this, as does `gate`. Null: everybody may do
  // everything.
  MemoryServiceImpl(const Clock& clock, Duration default_time,
                    std::function<Status()> hand_over = nullptr, AnswerObserver* observer = nullptr,
                    access::Gate* gate = nullptr)
      : clock_(clock),
        default_time_(default_time),
        hand_over_(std::move(hand_over)),
        observer_(observer),
        gate_(gate),
        started_(std::chrono::system_clock::now()),
        log_(clock) {}
  MemoryServiceImpl(Core& core, const Clock& clock, Duration default_time,
                    std::function<Status()> hand_over = nullptr)
      : MemoryServiceImpl(clock, default_time, std::move(hand_over)) {
    Serve(core);
  }

  // From now on, on `core`. Once.
  void Serve(Core& core) EXCLUDES(mutex_);

  grpc::ServerUnaryReactor* Sleep(grpc::CallbackServerContext* context,
                                  const v1::SleepRequest* request,
                                  v1::SleepResponse* response) override;
  grpc::ServerUnaryReactor* WakeUp(grpc::CallbackServerContext* context,
                                   const v1::WakeUpRequest* request,
                                   v1::WakeUpResponse* response) override;
  grpc::ServerUnaryReactor* Usage(grpc::CallbackServerContext* context,
                                  const v1::UsageRequest* request,
                                  v1::UsageResponse* response) override;
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveResponse* response) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const v1::RenewRequest* request,
                                  v1::RenewResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* Upgrade(grpc::CallbackServerContext* context,
                                    const v1::UpgradeRequest* request,
                                    v1::UpgradeResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;

  // Calls that have not been answered.
  int calls() const EXCLUDES(mutex_);
  // Those of Watch, which are none of these.
  size_t watchers() const { return watch_hub_->watchers(); }
  // Refuses new calls from now on (UNAVAILABLE DAEMON_STOPPING) and waits until `deadline` for
  // those under way; ends waits for memory, and at last the calls of Watch. False if some of the
  // others still are.
  bool Drain(TimePoint deadline) EXCLUDES(mutex_);

 private:
  access::Caller CallerOf(const grpc::CallbackServerContext& context) const;
  // PERMISSION_DENIED ACCESS_DENIED if `caller` may not call `method` at all.
  Status Allow(const access::Caller& caller, const char* method) const;
  // Answers the call with what comes of `work`, or of the request that it joins. `work` must not
  // use the call's own messages: it may outlive the call.
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const access::Caller& caller,
                                const char* method, const std::string& request_id,
                                const google::protobuf::Message& request,
                                google::protobuf::Message* response, UnaryCall::Work work,
                                UnaryCall::TakeBack take_back = nullptr) EXCLUDES(mutex_);
  UnaryCall::Work Blocking(std::function<Answer(const RequestLog::Attempt&)> work);
  // Or tells `refuse` that there are too many.
  void RunOnThread(const std::function<void(const Answer&)>& refuse, std::function<void()> task)
      EXCLUDES(mutex_);
  UnaryCall::Work ReserveInTurn(const v1::ReserveRequest& request, const std::string& owner,
                                TimePoint deadline);
  Answer FinishReserve(const v1::ReserveRequest& request, const ReservationSpec& spec,
                       const Result<ReserveResult>& result, const CancelToken& token) const;
  void Observe(const char* method, const Status& status, TimePoint since) const;
  Status Admit() EXCLUDES(mutex_);
  bool DrainCalls(TimePoint deadline) EXCLUDES(mutex_);
  TimePoint DeadlineOf(const grpc::CallbackServerContext& context) const;

  // Both set by Serve, under mutex_, before any call is admitted.
  Core* core_ = nullptr;
  std::unique_ptr<WatchHub> watch_hub_;
  const Clock& clock_;
  const Duration default_time_;
  const std::function<Status()> hand_over_;
  AnswerObserver* const observer_;
  access::Gate* const gate_;
  const std::chrono::system_clock::time_point started_;
  // What is written of failed calls.
  log::Limit operators_failures_{{seconds(5), 10, 64}};
  log::Limit others_failures_;
  RequestLog log_;
  mutable Mutex mutex_;
  CondVar idle_;
  int threads_ GUARDED_BY(mutex_) = 0;
  int calls_ GUARDED_BY(mutex_) = 0;  // not answered
  bool serving_ GUARDED_BY(mutex_) = false;
  bool draining_ GUARDED_BY(mutex_) = false;
  Tasks tasks_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_MEMORY_SERVICE_H_
