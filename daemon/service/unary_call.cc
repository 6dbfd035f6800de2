#include "daemon/service/unary_call.h"

#include "daemon/log.h"
#include "daemon/service/grpc_status.h"
#include "lib/base/status.h"

namespace torpor {
namespace {

void MarkReplayed(google::protobuf::Message& response) {
  const auto* const field = response.GetDescriptor()->FindFieldByName("replayed");
  if (field != nullptr) response.GetReflection()->SetBool(&response, field, true);
}

}  // namespace

UnaryCall* UnaryCall::Begin(const std::string& request_id, std::string body, Setup setup) {
  const std::shared_ptr<UnaryCall> call(new UnaryCall(std::move(setup)));
  call->self_ = call;
  const auto request =
      call->setup_.log->Enter(request_id, std::move(body), call, call->setup_.scope);
  if (!request.ok()) {
    call->Take({request.status(), nullptr}, false);
    return call.get();
  }
  bool joined = false;
  {
    MutexLock lock(call->mutex_);
    call->request_ = *request;
    joined = !call->leads_ && !call->answered_;
  }
  if (joined) {
    call->deadline_.Set(call->setup_.deadline,
                        [call = std::weak_ptr<UnaryCall>(call)](bool passed) {
                          const std::shared_ptr<UnaryCall> waiting = call.lock();
                          if (passed && waiting != nullptr) waiting->OnDeadline();
                        });
  }
  return call.get();
}

void UnaryCall::Start(const RequestLog::RequestPtr& request, const RequestLog::Attempt& attempt) {
  {
    MutexLock lock(mutex_);
    leads_ = true;
  }
  setup_.work(attempt,
              [log = setup_.log, request](const Answer& answer) { log->Finish(request, answer); });
}

void UnaryCall::Take(const Answer& answer, bool replayed) {
  {
    MutexLock lock(mutex_);
    answered_ = true;
    given_ = answer.response;
  }
  Status status = answer.status;
  if (!status.ok()) {
    if (setup_.failures == nullptr) {
      log::Warning("{} from {} failed: {}", setup_.method, setup_.peer, status);
    } else {
      setup_.failures->Write(log::Level::kWarning, setup_.caller + ' ' + status.reason(),
                             "{} from {} failed: {}", setup_.method, setup_.peer, status);
    }
    if (replayed) status.Add("replayed", "true");
  } else {
    setup_.response->CopyFrom(*answer.response);
    if (replayed) MarkReplayed(*setup_.response);
  }
  const std::function<void(const Status&)> answered = setup_.answered;
  // This may be gone afterwards.
  Finish(ToGrpcStatus(status));
  answered(status);
}

void UnaryCall::OnCancel() {
  RequestLog::RequestPtr request;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    request = request_;
  }
  // Its work ends soon, and with it the call that it was done for.
  if (request == nullptr || !setup_.log->Leave(request, this)) return;
  Take({Status(Code::kCancelled, "OPERATION_CANCELLED", "the call was cancelled"), nullptr}, false);
}

void UnaryCall::OnDone() {
  std::shared_ptr<const google::protobuf::Message> lost;
  {
    MutexLock lock(mutex_);
    if (cancelled_) lost = std::move(given_);
  }
  if (lost != nullptr && setup_.take_back != nullptr) setup_.take_back(*lost);
  self_.reset();
}

void UnaryCall::OnDeadline() {
  RequestLog::RequestPtr request;
  {
    MutexLock lock(mutex_);
    request = request_;
  }
  // The work of one that leads, perhaps since a moment ago, knows its deadline.
  if (!setup_.log->LeaveIfJoined(request, this)) return;
  Take({DeadlineExceeded("OPERATION_DEADLINE",
                         "the request that this call had joined is still under way"),
        nullptr},
       false);
}

}  // namespace torpor
