#include "daemon/service/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <string_view>
#include <utility>

#include "daemon/access/policy.h"
#include "daemon/service/grpc_status.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "lib/base/mutex.h"

namespace torpor {
namespace {

namespace v1 = grpc::reflection::v1;
namespace v1alpha = grpc::reflection::v1alpha;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

// A file before those that it imports, each once.
template <typename Response>
void AddWithImports(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
                    Response& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddWithImports(*file.dependency(i), added, response);
  }
}

template <typename Response>
void NotFound(const std::string& what, Response& response) {
  constexpr size_t kShown = 256;  // bytes: of a caller's own words
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response.mutable_error_response()->set_error_message("there is no " + what.substr(0, kShown));
}

template <typename Response>
void GiveFile(const FileDescriptor* file, const std::string& what, Response& response) {
  if (file == nullptr) return NotFound(what, response);
  std::set<const FileDescriptor*> added;
  AddWithImports(*file, added, response);
}

}  // namespace

template <typename Request, typename Response>
void Reflection::Answer(const Request& request, Response& response) const {
  response.Clear();
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return GiveFile(Pool().FindFileByName(request.file_by_filename()),
                      "file " + request.file_by_filename(), response);
    case Request::kFileContainingSymbol:
      return GiveFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
                      "symbol " + request.file_containing_symbol(), response);
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const Descriptor* const type = Pool().FindMessageTypeByName(asked.containing_type());
      const FieldDescriptor* const extension =
          type == nullptr ? nullptr : Pool().FindExtensionByNumber(type, asked.extension_number());
      return GiveFile(extension == nullptr ? nullptr : extension->file(),
                      "extension " + std::to_string(asked.extension_number()) + " of " +
                          asked.containing_type(),
                      response);
    }
    case Request::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const Descriptor* const type = Pool().FindMessageTypeByName(name);
      if (type == nullptr) return NotFound("type " + name, response);
      std::vector<const FieldDescriptor*> extensions;
      Pool().FindAllExtensions(type, &extensions);
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(name);
      for (const FieldDescriptor* extension : extensions) {
        numbers.add_extension_number(extension->number());
      }
      return;
    }
    case Request::kListServices:
      for (const std::string& service : services_) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      return;
    case Request::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("nothing is asked for");
      return;
  }
}

// One message at a time: what is answered has been read before the next one is. gRPC calls back one
// after the other; the lock says so to ThreadSanitizer, which does not see into it.
template <typename Request, typename Response>
class Reflection::Stream final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  Stream(Reflection& reflection, const Status& admitted)
      : reflection_(reflection), admitted_(admitted.ok()) {
    if (MutexLock lock(mutex_); admitted_) {
      this->StartRead(&request_);
    } else {
      this->Finish(ToGrpcStatus(admitted));
    }
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    MutexLock lock(mutex_);
    reflection_.Answer(request_, response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::CANCELLED);
    this->StartRead(&request_);
  }
  void OnDone() override {
    {
      MutexLock lock(mutex_);
      if (admitted_) --reflection_.streams_;
    }
    delete this;
  }

  Reflection& reflection_;
  const bool admitted_;
  Mutex mutex_;
  Request request_;
  Response response_;
};

template <typename Service, typename Request, typename Response>
class Reflection::Version final : public Service::CallbackService {
 public:
  explicit Version(Reflection& reflection) : reflection_(reflection) {}

  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override {
    return new Stream<Request, Response>(reflection_, reflection_.Admit(*context));
  }

 private:
  Reflection& reflection_;
};

Reflection::Reflection(access::Gate* gate, const std::vector<std::string>& services)
    : gate_(gate), services_(services) {
  services_.emplace_back(v1::ServerReflection::service_full_name());
  services_.emplace_back(v1alpha::ServerReflection::service_full_name());
  versions_.push_back(std::make_unique<Version<v1::ServerReflection, v1::ServerReflectionRequest,
                                               v1::ServerReflectionResponse>>(*this));
  versions_.push_back(
      std::make_unique<Version<v1alpha::ServerReflection, v1alpha::ServerReflectionRequest,
                               v1alpha::ServerReflectionResponse>>(*this));
}

Reflection::~Reflection() = default;

void Reflection::RegisterAt(grpc::ServerBuilder& builder) {
  for (const auto& version : versions_) builder.RegisterService(version.get());
}

Status Reflection::Admit(const grpc::CallbackServerContext& context) {
  if (gate_ != nullptr) {
    TORPOR_RETURN_IF_ERROR(gate_->Admit(gate_->CallerOf(context), access::kAnyRole, "reflection"));
  }
  if (++streams_ <= kMaxStreams) return Status::Ok();
  --streams_;
  return ResourceExhausted("TOO_MANY_STREAMS", "as many streams of reflection as may be are open")
      .With("streams", kMaxStreams);
}

}  // namespace torpor
