#include "daemon/service/memory_service.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <openssl/sha.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "daemon/operation/operation.h"
#include "daemon/service/conversions.h"
#include "daemon/service/deadline.h"
#include "daemon/service/grpc_status.h"
#include "daemon/stopping.h"
#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cli/version.h"

namespace torpor {
namespace {

Now MeasureNow(const Clock& clock) { return {clock.Now(), std::chrono::system_clock::now()}; }

int64_t Milliseconds(Duration duration) {
  return std::chrono::duration_cast<milliseconds>(duration).count();
}

// Equal for equal requests to one method only, as far as SHA-256 goes.
std::string DigestOf(const char* method, const google::protobuf::Message& request) {
  std::string body = method;
  body += '\0';
  {
    google::protobuf::io::StringOutputStream stream(&body);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // maps have no order
    request.SerializeToCodedStream(&coded);
  }
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(body.data()), body.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

// Late for the caller itself, or cancelled by it.
bool GaveUp(const Status& status, TimePoint deadline) {
  return status.code() == Code::kCancelled ||
         (status.code() == Code::kDeadlineExceeded && Clock::Real().Now() >= deadline);
}

Status TooManyCalls(int calls) {
  return ResourceExhausted("TOO_MANY_CALLS",
                           "the daemon is busy with as many calls as it takes at a time")
      .With("calls", calls);
}

Status DaemonStarting() {
  return Unavailable("DAEMON_STARTING", "the daemon is starting, and not ready yet");
}

// Who may call it at all; a mere worker then for its own only.
access::Roles RolesFor(std::string_view method) {
  if (method == "Upgrade") return access::kOperator;
  if (method == "Watch") return access::kOperator | access::kReader;
  if (method == "Usage") return access::kOperator | access::kWorker | access::kReader;
  return access::kOperator | access::kWorker;
}

std::string NameOf(const std::optional<Owner>& owner) {
  return owner.has_value() ? owner->name : std::string();
}

// A call of Watch that gets no events.
class Refused final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  explicit Refused(const grpc::Status& status) { Finish(status); }

 private:
  void OnDone() override { delete this; }
};

// `deadline`: of the caller whose operation it was.
template <typename Response>
Answer AnswerOf(const Result<std::vector<WorkerOutcome>>& outcomes, TimePoint deadline) {
  Answer answer;
  if (!outcomes.ok()) {
    answer.status = outcomes.status();
    answer.given_up = GaveUp(answer.status, deadline);
    return answer;
  }
  for (const WorkerOutcome& outcome : *outcomes) {
    answer.of_the_moment |= RequestLog::IsOfTheMoment(outcome.status);
    answer.given_up |= GaveUp(outcome.status, deadline);
  }
  const auto response = std::make_shared<Response>();
  FromOutcomes(*outcomes, *response);
  answer.response = response;
  return answer;
}

}  // namespace

access::Caller MemoryServiceImpl::CallerOf(const grpc::CallbackServerContext& context) const {
  if (gate_ != nullptr) return gate_->CallerOf(context);
  access::Caller caller;
  caller.roles = access::kOperator;
  return caller;
}

Status MemoryServiceImpl::Allow(const access::Caller& caller, const char* method) const {
  return gate_ == nullptr ? Status::Ok() : gate_->Admit(caller, RolesFor(method), method);
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Run(
    grpc::CallbackServerContext* context, const access::Caller& caller, const char* method,
    const std::string& request_id, const google::protobuf::Message& request,
    google::protobuf::Message* response, UnaryCall::Work work, UnaryCall::TakeBack take_back) {
  const TimePoint since = Clock::Real().Now();
  Status admitted = Allow(caller, method);
  if (admitted.ok()) admitted = Admit();
  if (!admitted.ok()) {
    Observe(method, admitted, since);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(admitted));
    return reactor;
  }
  UnaryCall::Setup setup;
  setup.log = &log_;
  setup.method = method;
  setup.peer = caller.identity.ToString();
  setup.caller = caller.identity.Name();
  setup.failures = caller.Has(access::kOperator) ? &operators_failures_ : &others_failures_;
  setup.scope = NameOf(caller.owner);
  setup.deadline =
      std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(
                                             OperationTime(context->raw_deadline(), default_time_));
  setup.response = response;
  setup.work = std::move(work);
  setup.take_back = std::move(take_back);
  setup.answered = [this, method, since](const Status& status) {
    Observe(method, status, since);
    MutexLock lock(mutex_);
    if (--calls_ == 0) idle_.NotifyAll();
  };
  return UnaryCall::Begin(
      request_id, request_id.empty() ? std::string() : DigestOf(method, request), std::move(setup));
}

UnaryCall::Work MemoryServiceImpl::Blocking(
    std::function<Answer(const RequestLog::Attempt&)> work) {
  return [this, work = std::move(work)](const RequestLog::Attempt& attempt,
                                        const std::function<void(const Answer&)>& done) {
    RunOnThread(done, [work, attempt, done] { done(work(attempt)); });
  };
}

void MemoryServiceImpl::RunOnThread(const std::function<void(const Answer&)>& refuse,
                                    std::function<void()> task) {
  bool free = false;
  {
    MutexLock lock(mutex_);
    free = threads_ < kMaxThreads;
    if (free) ++threads_;
  }
  if (!free) return refuse({TooManyCalls(kMaxThreads), nullptr});
  const auto ended = [this] {
    MutexLock lock(mutex_);
    if (--threads_ == 0) idle_.NotifyAll();
  };
  const Status started = tasks_.Run([ended, task = std::move(task)]() mutable {
    task();
    task = nullptr;
    ended();
  });
  if (started.ok()) return;
  refuse({started, nullptr});
  ended();
}

void MemoryServiceImpl::Serve(Core& core) {
  auto watch_hub = std::make_unique<WatchHub>(core.events());
  MutexLock lock(mutex_);
  core_ = &core;
  watch_hub_ = std::move(watch_hub);
  serving_ = true;
}

void MemoryServiceImpl::Observe(const char* method, const Status& status, TimePoint since) const {
  if (observer_ == nullptr) return;
  observer_->OnAnswer(AnswerObserver::Plane::kControl, method, status, Clock::Real().Now() - since);
}

Status MemoryServiceImpl::Admit() {
  MutexLock lock(mutex_);
  if (draining_) return DaemonStopping();
  if (!serving_) return DaemonStarting();
  if (calls_ == kMaxCalls) return TooManyCalls(kMaxCalls);
  ++calls_;
  return Status::Ok();
}

bool MemoryServiceImpl::Drain(TimePoint deadline) {
  if (!DrainCalls(deadline)) return false;
  if (watch_hub_ != nullptr) watch_hub_->End(DaemonStopping());
  return true;
}

bool MemoryServiceImpl::DrainCalls(TimePoint deadline) {
  bool serving = false;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    serving = serving_;
  }
  if (serving) core_->StopWaiting(DaemonStopping());
  MutexLock lock(mutex_);
  while (threads_ != 0 || calls_ != 0) {
    if (!idle_.WaitUntil(mutex_, deadline) && Clock::Real().Now() >= deadline) {
      return threads_ == 0 && calls_ == 0;
    }
  }
  return true;
}

int MemoryServiceImpl::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

TimePoint MemoryServiceImpl::DeadlineOf(const grpc::CallbackServerContext& context) const {
  // Operations wait by the real clock, as gRPC does.
  return Clock::Real().Now() + OperationTime(context.raw_deadline(), default_time_);
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Sleep(grpc::CallbackServerContext* context,
                                                   const v1::SleepRequest* request,
                                                   v1::SleepResponse* response) {
  const access::Caller caller = CallerOf(*context);
  return Run(context, caller, "Sleep", request->request_id(), *request, response,
             Blocking([this, request = *request, deadline = DeadlineOf(*context),
                       owner = caller.owner](const RequestLog::Attempt& attempt) -> Answer {
               Result<SleepCommand> command = ToSleepCommand(request, deadline);
               if (!command.ok()) return {command.status(), nullptr};
               command->cancel = attempt.token.get();
               command->again = attempt.again;
               command->owner = owner;
               return AnswerOf<v1::SleepResponse>(core_->Sleep(*command), deadline);
             }));
}

grpc::ServerUnaryReactor* MemoryServiceImpl::WakeUp(grpc::CallbackServerContext* context,
                                                    const v1::WakeUpRequest* request,
                                                    v1::WakeUpResponse* response) {
  const access::Caller caller = CallerOf(*context);
  return Run(context, caller, "WakeUp", request->request_id(), *request, response,
             Blocking([this, request = *request, deadline = DeadlineOf(*context),
                       owner = caller.owner](const RequestLog::Attempt& attempt) -> Answer {
               WakeCommand command = ToWakeCommand(request, deadline);
               command.cancel = attempt.token.get();
               command.again = attempt.again;
               command.owner = owner;
               return AnswerOf<v1::WakeUpResponse>(core_->WakeUp(command), deadline);
             }));
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Usage(grpc::CallbackServerContext* context,
                                                   const v1::UsageRequest* request,
                                                   v1::UsageResponse* response) {
  const access::Caller caller = CallerOf(*context);
  const bool sees_all = caller.Has(access::kOperator | access::kReader);
  return Run(context, caller, "Usage", "", *request, response,
             Blocking([this, owner = sees_all ? std::nullopt : caller.owner](
                          const RequestLog::Attempt& /*attempt*/) -> Answer {
               const Result<UsageReport> report = core_->Usage();
               if (!report.ok()) return {report.status(), nullptr};
               const auto usage = std::make_shared<v1::UsageResponse>();
               FromReport(*report, MeasureNow(clock_), *usage);
               if (owner.has_value()) KeepOwn(*owner, *report, *usage);
               usage->set_version(Version());
               FromSystemTime(started_, *usage->mutable_start_time());
               return {Status::Ok(), usage};
             }));
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Reserve(grpc::CallbackServerContext* context,
                                                     const v1::ReserveRequest* request,
                                                     v1::ReserveResponse* response) {
  const access::Caller caller = CallerOf(*context);
  const std::string owner = NameOf(caller.owner);
  UnaryCall::Work work;
  if (request->wait()) {
    work = ReserveInTurn(*request, owner,
                         clock_.Now() + OperationTime(context->raw_deadline(), default_time_));
  } else {
    work =
        Blocking([this, request = *request, owner](const RequestLog::Attempt& attempt) -> Answer {
          Result<ReservationSpec> spec = ToReservationSpec(request);
          if (!spec.ok()) return {spec.status(), nullptr};
          spec->owner = owner;
          return FinishReserve(request, *spec, core_->Reserve(*spec), *attempt.token);
        });
  }
  UnaryCall::TakeBack release;
  if (request->request_id().empty()) {
    // Who has an id can ask again.
    release = [this](const google::protobuf::Message& lost) {
      const std::string& id = static_cast<const v1::ReserveResponse&>(lost).reservation_id();
      log::Info("Reserve {}: its caller has gone", id);
      (void)core_->Release(id);
    };
  }
  return Run(context, caller, "Reserve", request->request_id(), *request, response, std::move(work),
             std::move(release));
}

UnaryCall::Work MemoryServiceImpl::ReserveInTurn(const v1::ReserveRequest& request,
                                                 const std::string& owner, TimePoint deadline) {
  return [this, request, owner, deadline](const RequestLog::Attempt& attempt,
                                          const std::function<void(const Answer&)>& done) {
    Result<ReservationSpec> spec = ToReservationSpec(request);
    if (!spec.ok()) return done({spec.status(), nullptr});
    spec->owner = owner;
    const uint64_t ticket = core_->NewTicket();
    // Who goes on where another caller gave up has that one's place.
    if (!attempt.place->has_value()) *attempt.place = ticket;
    const std::shared_ptr<CancelToken> token = attempt.token;
    const auto leave = std::make_shared<std::optional<CancelToken::Callback>>();
    core_->ReserveAsync(
        ticket, *spec, deadline,
        [this, request, spec = *spec, token, done, leave](const Result<ReserveResult>& result) {
          done(FinishReserve(request, spec, result, *token));
        },
        *attempt.place);
    leave->emplace(token.get(),
                   [this, ticket, token] { core_->CancelWait(ticket, token->status()); });
  };
}

Answer MemoryServiceImpl::FinishReserve(const v1::ReserveRequest& request,
                                        const ReservationSpec& spec,
                                        const Result<ReserveResult>& result,
                                        const CancelToken& token) const {
  if (!result.ok()) {
    return {result.status(), nullptr, false, result.status().reason() == "RESERVATION_DEADLINE"};
  }
  if (token.cancelled() && request.request_id().empty()) {
    // Promised to nobody, who could not even ask again.
    (void)core_->Release(result->id);
    return {token.status(), nullptr};
  }
  const auto response = std::make_shared<v1::ReserveResponse>();
  FromReserveResult(*result, spec.device(), MeasureNow(clock_), *response);
  log::Info("Reserve {} ({}): device {}, host {}, for {} ms{}{}", result->id, spec.name,
            FormatBytes(spec.device()), FormatBytes(spec.host), Milliseconds(spec.ttl),
            spec.hold ? ", hold" : "", spec.keep ? ", keep" : "");
  return {Status::Ok(), response};
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Renew(grpc::CallbackServerContext* context,
                                                   const v1::RenewRequest* request,
                                                   v1::RenewResponse* response) {
  const access::Caller caller = CallerOf(*context);
  return Run(context, caller, "Renew", request->request_id(), *request, response,
             Blocking([this, request = *request,
                       owner = caller.owner](const RequestLog::Attempt& /*attempt*/) -> Answer {
               const Result<Duration> ttl = ToTtl(request.has_ttl(), request.ttl());
               if (!ttl.ok()) return {ttl.status(), nullptr};
               const Result<TimePoint> expires =
                   core_->Renew(request.reservation_id(), *ttl, owner);
               if (!expires.ok()) return {expires.status(), nullptr};
               const auto renewed = std::make_shared<v1::RenewResponse>();
               FromTimePoint(*expires, MeasureNow(clock_), *renewed->mutable_expire_time());
               log::Info("Renew {}: for {} ms", request.reservation_id(), Milliseconds(*ttl));
               return {Status::Ok(), renewed};
             }));
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Release(grpc::CallbackServerContext* context,
                                                     const v1::ReleaseRequest* request,
                                                     v1::ReleaseResponse* response) {
  const access::Caller caller = CallerOf(*context);
  return Run(context, caller, "Release", request->request_id(), *request, response,
             Blocking([this, id = request->reservation_id(),
                       owner = caller.owner](const RequestLog::Attempt&) -> Answer {
               const Result<Admission::Released> released = core_->Release(id, owner);
               if (!released.ok()) return {released.status(), nullptr};
               const auto free = std::make_shared<v1::ReleaseResponse>();
               free->set_device_bytes(released->device.value());
               free->set_host_bytes(released->host.value());
               log::Info("Release {}: device {}, host {}", id, FormatBytes(released->device),
                         FormatBytes(released->host));
               return {Status::Ok(), free};
             }));
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Upgrade(grpc::CallbackServerContext* context,
                                                     const v1::UpgradeRequest* request,
                                                     v1::UpgradeResponse* response) {
  return Run(context, CallerOf(*context), "Upgrade", "", *request, response,
             Blocking([this](const RequestLog::Attempt&) -> Answer {
               const Status begun =
                   hand_over_ == nullptr
                       ? FailedPrecondition("NO_KEEPER", "nothing would start this daemon again")
                       : hand_over_();
               if (!begun.ok()) return {begun, nullptr};
               const auto ending = std::make_shared<v1::UpgradeResponse>();
               ending->set_version(Version());
               FromSystemTime(started_, *ending->mutable_start_time());
               return {Status::Ok(), ending};
             }));
}

grpc::ServerWriteReactor<v1::WatchResponse>* MemoryServiceImpl::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  if (const Status allowed = Allow(CallerOf(*context), "Watch"); !allowed.ok()) {
    Observe("Watch", allowed, Clock::Real().Now());
    return new Refused(ToGrpcStatus(allowed));
  }
  bool serving = false;
  {
    MutexLock lock(mutex_);
    serving = serving_;
  }
  if (serving) return watch_hub_->Watch(*request);
  return new Refused(ToGrpcStatus(DaemonStarting()));
}

}  // namespace torpor
