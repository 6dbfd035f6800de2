// gRPC's libraries are not instrumented, but its templates are part of our programs:
// ThreadSanitizer sees what they touch, not the locks that order it. These are gRPC's own objects,
// and the ends of reactors, which gRPC calls after everything else. Races between our own callbacks
// are reported.
extern "C" const char* __tsan_default_suppressions();  // NOLINT: the sanitizer's name for it

extern "C" const char* __tsan_default_suppressions() {
  return
      // The innermost frame.
      "race_top:^grpc::\n"
      // Before it takes the service's lock, it reads where that is.
      "race_top:torpor::HealthService::Stream::On\n"
      // Any frame.
      "race:grpc::GenericSerialize\n"
      "race:grpc::Server::CallbackRequest\n"
      "race:grpc::Server*Reactor*::InternalBindCall\n"
      "race:grpc::Server*Reactor*::PreBindBacklog\n"
      "race:grpc::internal::CallOp\n"
      "race:grpc::internal::CallbackBidiHandler<grpc::ByteBuffer\n"
      "race:grpc::internal::CallbackWithStatusTag::\n"
      "race:grpc::internal::CallbackWithSuccessTag::*Clear\n"
      "race:grpc::internal::CallbackWithSuccessTag::Set\n"
      "race:grpc::internal::CallbackWithSuccessTag::~CallbackWithSuccessTag\n"
      "race:grpc::internal::ClientCallback*Impl\n"
      "race:grpc::internal::DefaultMessageHolder\n"
      "race:grpc::internal::InterceptorBatchMethodsImpl\n"
      "race:grpc::internal::ServerCallbackCall::\n"
      "race:::CallOnDone\n"
      "race:::ServerCallback*Impl::~ServerCallback\n"
      "race:::ServerCallback*Impl::Finish\n"
      "race:torpor::HealthService::Stream::OnDone\n"
      "race:torpor::Reflection::Stream*::OnDone\n"
      "race:torpor::UnaryCall::OnDone\n"
      "race:torpor::WatchHub::Watcher::OnDone\n"
      "race:torpor::WatchHub::Watcher::~Watcher\n";
}
