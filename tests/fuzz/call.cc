#include "tests/fuzz/call.h"

#include <string>

namespace torpor::fuzz {
namespace {

using google::protobuf::Message;

std::unique_ptr<Message> New(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

}  // namespace

Call::Call(const google::protobuf::MethodDescriptor* method)
    : method_(method), request_(New(method->input_type())), response_(New(method->output_type())) {}

void Call::Start(Stub& stub) {
  const std::string path = "/" + method_->service()->full_name() + "/" + method_->name();
  if (!method_->server_streaming()) {
    stub.UnaryCall(&context_, path, {}, request_.get(), response_.get(),
                   [this](const grpc::Status& status) { Done(status); });
    return;
  }
  stub.PrepareBidiStreamingCall(&context_, path, {}, this);
  StartWriteLast(request_.get(), grpc::WriteOptions());
  StartRead(response_.get());
  StartCall();
}

void Call::OnReadDone(bool ok) {
  if (ok) StartRead(response_.get());
}

void Call::Done(const grpc::Status& status) {
  MutexLock lock(mutex_);
  status_ = status;
  done_ = true;
  changed_.NotifyAll();
}

bool Call::Wait(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!done_) {
    if (!changed_.WaitUntil(mutex_, deadline) && Clock::Real().Now() >= deadline) return done_;
  }
  return true;
}

}  // namespace torpor::fuzz
