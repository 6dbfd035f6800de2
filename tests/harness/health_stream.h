#ifndef TORPOR_TESTS_HARNESS_HEALTH_STREAM_H_
#define TORPOR_TESTS_HARNESS_HEALTH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace torpor {

using Serving = grpc::health::v1::HealthCheckResponse;

// What grpc.health.v1 says of a service now; UNKNOWN where the call fails.
inline Serving::ServingStatus HealthOf(const std::shared_ptr<grpc::Channel>& channel,
                                       const std::string& service = "") {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  Serving response;
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  return stub->Check(&context, request, &response).ok() ? response.status() : Serving::UNKNOWN;
}

// A Watch of grpc.health.v1, from its begin on.
class HealthStream {
 public:
  explicit HealthStream(const std::shared_ptr<grpc::Channel>& channel,
                        const std::string& service = "")
      : stub_(grpc::health::v1::Health::NewStub(channel)) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    reader_ = stub_->Watch(&context_, request);
    thread_ = std::thread([this] {
      Serving response;
      while (reader_->Read(&response)) {
        MutexLock lock(mutex_);
        told_.push_back(response.status());
        changed_.NotifyAll();
      }
    });
  }
  ~HealthStream() {
    context_.TryCancel();
    thread_.join();
    (void)reader_->Finish();
  }
  HealthStream(const HealthStream&) = delete;
  HealthStream& operator=(const HealthStream&) = delete;

  // Whether the last that was told is `status`, before a long time has passed.
  bool Await(Serving::ServingStatus status) EXCLUDES(mutex_) {
    const TimePoint until = Clock::Real().Now() + seconds(120);
    MutexLock lock(mutex_);
    while (told_.empty() || told_.back() != status) {
      if (!changed_.WaitUntil(mutex_, until) && Clock::Real().Now() >= until) return false;
    }
    return true;
  }
  std::vector<Serving::ServingStatus> told() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return told_;
  }

 private:
  const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<Serving>> reader_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Serving::ServingStatus> told_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace torpor

#endif  // TORPOR_TESTS_HARNESS_HEALTH_STREAM_H_
