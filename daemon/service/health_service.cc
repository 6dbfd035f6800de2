#include "daemon/service/health_service.h"

#include <optional>
#include <utility>

#include "daemon/access/policy.h"
#include "daemon/service/grpc_status.h"

namespace torpor {

class HealthService::Stream final : public grpc::ServerWriteReactor<Serving> {
 public:
  Stream(HealthService& health, std::string service, bool stranger)
      : health_(health), service_(std::move(service)), stranger_(stranger) {}
  explicit Stream(HealthService& health, const grpc::Status& refused) : health_(health) {
    Finish(refused);
  }

 private:
  friend class HealthService;
  void OnWriteDone(bool ok) override {
    MutexLock lock(health_.mutex_);
    writing_ = false;
    if (ok) {
      health_.Tell(*this);
    } else {
      health_.End(*this);
    }
  }
  void OnCancel() override {
    MutexLock lock(health_.mutex_);
    // One that was refused has ended before.
    if (health_.streams_.count(this) != 0) health_.End(*this);
  }
  void OnDone() override {
    {
      MutexLock lock(health_.mutex_);
      if (health_.streams_.erase(this) != 0 && stranger_) --health_.of_strangers_;
    }
    delete this;
  }

  HealthService& health_;
  const std::string service_;
  const bool stranger_ = false;
  // Under the service's lock.
  Serving response_;  // gRPC's while writing_
  bool writing_ = false;
  bool ended_ = false;
  std::optional<Serving::ServingStatus> told_;
};

HealthService::~HealthService() = default;

void HealthService::Set(const std::string& service, bool serving) {
  MutexLock lock(mutex_);
  serving_[service] = serving && !ended_;
  TellAll();
}

void HealthService::EndServing() {
  MutexLock lock(mutex_);
  ended_ = true;
  for (auto& [service, serving] : serving_) serving = false;
  TellAll();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::health::v1::HealthCheckRequest* request,
                                               Serving* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  {
    MutexLock lock(mutex_);
    response->set_status(Of(request->service()));
  }
  reactor->Finish(response->status() == Serving::SERVICE_UNKNOWN
                      ? grpc::Status(grpc::StatusCode::NOT_FOUND, "service name unknown")
                      : grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthService::Serving>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) {
  const bool stranger = gate_ != nullptr && !gate_->CallerOf(*context).Has(access::kAnyRole);
  MutexLock lock(mutex_);
  if (const Status admitted = Admit(stranger); !admitted.ok()) {
    return new Stream(*this, ToGrpcStatus(admitted));
  }
  auto* const stream = new Stream(*this, request->service(), stranger);
  streams_.insert(stream);
  if (stranger) ++of_strangers_;
  Tell(*stream);
  return stream;
}

Status HealthService::Admit(bool stranger) {
  if (static_cast<int>(streams_.size()) >= kMaxStreams) {
    return ResourceExhausted("TOO_MANY_STREAMS", "as many streams of health as may be are open")
        .With("streams", kMaxStreams);
  }
  if (stranger && of_strangers_ >= kStreamsOfStrangers) {
    return ResourceExhausted(
               "TOO_MANY_STREAMS",
               "as many streams of health as callers without a role may have are open")
        .With("streams", kStreamsOfStrangers);
  }
  return Status::Ok();
}

HealthService::Serving::ServingStatus HealthService::Of(const std::string& service) const {
  const auto found = serving_.find(service);
  if (found == serving_.end()) return Serving::SERVICE_UNKNOWN;
  return found->second ? Serving::SERVING : Serving::NOT_SERVING;
}

void HealthService::Tell(Stream& stream) {
  const Serving::ServingStatus now = Of(stream.service_);
  if (stream.ended_ || stream.writing_ || stream.told_ == now) return;
  stream.told_ = now;
  stream.writing_ = true;
  stream.response_.set_status(now);
  stream.StartWrite(&stream.response_);
}

void HealthService::TellAll() {
  for (Stream* const stream : streams_) Tell(*stream);
}

void HealthService::End(Stream& stream) {
  if (stream.ended_) return;
  stream.ended_ = true;
  stream.Finish(grpc::Status::CANCELLED);
}

}  // namespace torpor
