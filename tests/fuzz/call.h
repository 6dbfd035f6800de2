#ifndef TORPOR_TESTS_FUZZ_CALL_H_
#define TORPOR_TESTS_FUZZ_CALL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <memory>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace torpor::fuzz {

// One call of a method that only its descriptor names; unary, or with a stream of answers. Wait
// until it is done before it is destroyed. Thread-safe.
class Call final
    : private grpc::ClientBidiReactor<google::protobuf::Message, google::protobuf::Message> {
 public:
  using Stub = grpc::TemplatedGenericStub<google::protobuf::Message, google::protobuf::Message>;

  explicit Call(const google::protobuf::MethodDescriptor* method);

  // To be set up before Start.
  grpc::ClientContext& context() { return context_; }
  google::protobuf::Message& request() { return *request_; }

  void Start(Stub& stub);
  void Cancel() { context_.TryCancel(); }
  // False at `deadline`.
  bool Wait(TimePoint deadline) EXCLUDES(mutex_);

  // Once it is done. `response`: of a stream, the last one.
  const grpc::Status& status() const { return status_; }
  const google::protobuf::Message& response() const { return *response_; }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override { Done(status); }
  void Done(const grpc::Status& status) EXCLUDES(mutex_);

  const google::protobuf::MethodDescriptor* const method_;
  grpc::ClientContext context_;
  const std::unique_ptr<google::protobuf::Message> request_;
  const std::unique_ptr<google::protobuf::Message> response_;
  grpc::Status status_;
  Mutex mutex_;
  CondVar changed_;
  bool done_ GUARDED_BY(mutex_) = false;
};

}  // namespace torpor::fuzz

#endif  // TORPOR_TESTS_FUZZ_CALL_H_
