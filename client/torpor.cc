#include "client/torpor.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/connect.h"
#include "client/copy.h"
#include "client/last_error.h"
#include "client/session_handle.h"

namespace torpor::client {
namespace {

#define TORPOR_STRING_INNER_(x) #x
#define TORPOR_STRING_(x) TORPOR_STRING_INNER_(x)
constexpr char kVersion[] = TORPOR_STRING_(TORPOR_VERSION_MAJOR) "." TORPOR_STRING_(
    TORPOR_VERSION_MINOR) "." TORPOR_STRING_(TORPOR_VERSION_PATCH);

Status NullArgument(const char* name) {
  return InvalidArgument("NULL_ARGUMENT", std::string(name) + " is NULL");
}

#define TORPOR_REQUIRE(argument) \
  if ((argument) == nullptr) return NullArgument(#argument)

std::string Text(const char* text) { return text == nullptr ? "" : text; }

DeviceAddress Address(const void* pointer) {
  return DeviceAddress(reinterpret_cast<uintptr_t>(pointer));
}

void* Pointer(DeviceAddress address) { return reinterpret_cast<void*>(address.value()); }

Status CheckStructSize(size_t size) {
  if (size > sizeof(size_t)) return Status::Ok();
  return InvalidArgument("BAD_STRUCT_SIZE", "struct_size is not set").With("struct_size", size);
}

// Gives a caller as much of `value` as its structure has room for.
template <typename Struct>
Status Export(Struct value, Struct* to) {
  const size_t size = to->struct_size;
  TORPOR_RETURN_IF_ERROR(CheckStructSize(size));
  value.struct_size = size;
  std::memcpy(static_cast<void*>(to), &value, std::min(size, sizeof value));
  return Status::Ok();
}

// What a caller's structure says, which may be shorter than ours; longer only with zeros.
Result<torpor_options> ImportOptions(const torpor_options* from) {
  torpor_options options = TORPOR_OPTIONS_INIT;
  if (from == nullptr) return options;
  const size_t size = from->struct_size;
  TORPOR_RETURN_IF_ERROR(CheckStructSize(size));
  const char* bytes = reinterpret_cast<const char*>(from);
  for (size_t i = sizeof options; i < size; ++i) {
    if (bytes[i] != 0) {
      return InvalidArgument("UNKNOWN_OPTION", "this library does not know all options given")
          .With("struct_size", size)
          .With("known_bytes", sizeof options);
    }
  }
  std::memcpy(&options, bytes, std::min(size, sizeof options));
  return options;
}

std::optional<Duration> Timeout(int64_t ms) {
  constexpr int64_t kYear = int64_t{365} * 24 * 3600 * 1000;
  if (ms < 0 || ms > kYear) return std::nullopt;
  return milliseconds(ms);
}

// The protocol's 0 is "none"; a caller's 0 is as short as can be.
int64_t WireTimeout(int64_t ms) { return ms < 0 ? 0 : std::max<int64_t>(ms, 1); }

Result<std::vector<std::string>> Tags(const char* const* tags, size_t count) {
  std::vector<std::string> all;
  if (count > 0 && tags == nullptr) return NullArgument("tags");
  for (size_t i = 0; i < count; ++i) {
    TORPOR_REQUIRE(tags[i]);
    all.emplace_back(tags[i]);
  }
  return all;
}

Result<wire::Quiesce> QuiesceMode(int mode) {
  if (mode < TORPOR_QUIESCE_NONE || mode > TORPOR_QUIESCE_CALLBACK) {
    return InvalidArgument("BAD_QUIESCE_MODE", "no way to quiet a worker has this number")
        .With("quiesce", mode);
  }
  return static_cast<wire::Quiesce>(mode);
}

template <size_t kSize>
void CopyName(const std::string& from, char (&to)[kSize]) {
  const size_t size = std::min(from.size(), kSize - 1);
  std::memcpy(to, from.data(), size);
  to[size] = '\0';
}

Status ExportSleep(const wire::SleepReply& reply, torpor_sleep_result* result) {
  if (result == nullptr) return Status::Ok();
  torpor_sleep_result value = TORPOR_SLEEP_RESULT_INIT;
  value.device_bytes = reply.device.value();
  value.copied_bytes = reply.copied.value();
  value.discarded_bytes = reply.discarded.value();
  return Export(value, result);
}

Status CheckResult(const torpor_sleep_result* result) {
  return result == nullptr ? Status::Ok() : CheckStructSize(result->struct_size);
}

Status CloseSession(torpor_session* session) {
  TORPOR_RETURN_IF_ERROR(session->session->CheckProcess());
  if (session->session->InCallback()) {
    return FailedPrecondition("CALLED_FROM_CALLBACK", "a callback cannot close its session");
  }
  ForgetTorchSession(session);
  delete session;
  return Status::Ok();
}

Status Describe(const torpor_session* session, torpor_session_info* info) {
  const wire::HelloReply& hello = session->session->hello();
  torpor_session_info value{};
  value.worker_id = hello.worker.value();
  CopyName(hello.device_kind, value.device_kind);
  CopyName(hello.device_uuid, value.device_uuid);
  value.device_total_bytes = hello.device_total.value();
  value.granularity_bytes = hello.granularity.value();
  return Export(value, info);
}

Status FindSegment(torpor_session* session, const void* address, torpor_segment_info* info) {
  TORPOR_ASSIGN_OR_RETURN(const SegmentInfo found, session->session->Find(Address(address)));
  torpor_segment_info value{};
  value.address = Pointer(found.address);
  value.size = found.size.value();
  CopyName(found.tag, value.tag);
  return Export(value, info);
}

Status BeginWork(torpor_session* session, const char* const* tags, size_t tag_count,
                 int64_t timeout_ms) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> names, Tags(tags, tag_count));
  return session->session->WorkBegin(names, Timeout(timeout_ms));
}

Status SetCallbacks(torpor_session* session, torpor_pause_fn pause, torpor_resume_fn resume,
                    void* user) {
  PauseHook::Callbacks callbacks;
  if (pause != nullptr) callbacks.pause = [pause, user] { return pause(user); };
  if (resume != nullptr) callbacks.resume = [resume, user] { resume(user); };
  return session->session->OnPause(std::move(callbacks));
}

Status SleepPolicies(torpor_session* session, const torpor_tag_policy* policies,
                     size_t policy_count, int force, int64_t timeout_ms,
                     torpor_sleep_result* result) {
  TORPOR_RETURN_IF_ERROR(CheckResult(result));
  wire::Sleep request;
  for (size_t i = 0; i < policy_count; ++i) {
    TORPOR_REQUIRE(policies[i].tag);
    const int policy = policies[i].policy;
    if (policy < TORPOR_KEEP || policy > TORPOR_DISCARD) {
      return InvalidArgument("BAD_POLICY", "no policy has this number").With("policy", policy);
    }
    request.tags.emplace_back(policies[i].tag);
    request.policies.push_back({policies[i].tag, static_cast<wire::Policy>(policy)});
  }
  if (request.policies.empty()) {
    return InvalidArgument("EMPTY_SELECTION", "no policy was given");
  }
  request.force = force != 0;
  request.timeout_ms = WireTimeout(timeout_ms);
  TORPOR_ASSIGN_OR_RETURN(const wire::SleepReply reply, session->session->Sleep(request));
  return ExportSleep(reply, result);
}

Status GetUsage(torpor_session* session, torpor_usage_info* usage, torpor_tag_usage* tags,
                size_t capacity) {
  TORPOR_RETURN_IF_ERROR(CheckStructSize(usage->struct_size));
  if (capacity > 0) {
    TORPOR_REQUIRE(tags);
    TORPOR_RETURN_IF_ERROR(CheckStructSize(tags->struct_size));
  }
  TORPOR_ASSIGN_OR_RETURN(const wire::UsageReply reply, session->session->Usage());
  torpor_usage_info value{};
  value.device_total_bytes = reply.device_total.value();
  value.device_free_bytes = reply.device_free.value();
  value.available_bytes = reply.available.value();
  value.tag_count = reply.tags.size();
  TORPOR_RETURN_IF_ERROR(Export(value, usage));
  const size_t step = capacity > 0 ? tags->struct_size : 0;
  for (size_t i = 0; i < std::min(capacity, reply.tags.size()); ++i) {
    const wire::TagUsage& from = reply.tags[i];
    torpor_tag_usage to{};
    CopyName(from.tag, to.tag);
    to.segments = from.segments;
    to.resident_bytes = from.resident.value();
    to.offloaded_bytes = from.offloaded.value();
    to.discarded_bytes = from.discarded.value();
    to.struct_size = step;
    std::memcpy(reinterpret_cast<char*>(tags) + i * step, &to, std::min(step, sizeof to));
  }
  return Status::Ok();
}

}  // namespace

Result<torpor_session*> OpenSession(const torpor_options* given) {
  TORPOR_ASSIGN_OR_RETURN(const torpor_options options, ImportOptions(given));
  ConnectOptions connect;
  connect.session.socket_path = Text(options.socket_path);
  connect.session.name = Text(options.name);
  connect.session.device_uuid = Text(options.device_uuid);
  TORPOR_ASSIGN_OR_RETURN(connect.session.quiesce, QuiesceMode(options.quiesce));
  connect.session.reservation = Text(options.reservation);
  connect.runtime_dir = Text(options.runtime_dir);
  connect.device = options.device;
  connect.driver = Text(options.driver);
  auto handle = std::make_unique<torpor_session>();
  handle->device = options.device;
  TORPOR_ASSIGN_OR_RETURN(handle->session, Connect(connect));
  return handle.release();
}

}  // namespace torpor::client

using namespace torpor::client;  // NOLINT(build/namespaces): the definitions of a C interface
using torpor::Bytes;
using torpor::Status;
namespace wire = torpor::wire;

extern "C" {

const char* torpor_version(void) { return kVersion; }

int torpor_connect(const torpor_options* options, torpor_session** session) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    *session = nullptr;
    TORPOR_ASSIGN_OR_RETURN(*session, OpenSession(options));
    return Status::Ok();
  });
}

int torpor_close(torpor_session* session) {
  if (session == nullptr) return TORPOR_OK;
  return ReturnCode([&] { return CloseSession(session); });
}

int torpor_describe(const torpor_session* session, torpor_session_info* info) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_REQUIRE(info);
    return Describe(session, info);
  });
}

int torpor_allocate(torpor_session* session, const char* tag, int64_t size, void** address) {
  return torpor_allocate_wait(session, tag, size, 0, address);
}

int torpor_allocate_wait(torpor_session* session, const char* tag, int64_t size, int64_t timeout_ms,
                         void** address) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(address);
    *address = nullptr;
    TORPOR_REQUIRE(session);
    TORPOR_REQUIRE(tag);
    TORPOR_ASSIGN_OR_RETURN(const torpor::DeviceAddress start,
                            session->session->AllocateWait(tag, Bytes(size), timeout_ms));
    *address = Pointer(start);
    return Status::Ok();
  });
}

int torpor_free(torpor_session* session, void* address) {
  if (address == nullptr) return TORPOR_OK;
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    return session->session->Free(Address(address));
  });
}

int torpor_segment(torpor_session* session, const void* address, torpor_segment_info* info) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_REQUIRE(info);
    return FindSegment(session, address, info);
  });
}

int torpor_copy_to_device(torpor_session* session, void* to, const void* from, int64_t size) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_REQUIRE(from);
    return CopyToDevice(*session->session, Address(to), from, Bytes(size));
  });
}

int torpor_copy_from_device(torpor_session* session, void* to, const void* from, int64_t size) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_REQUIRE(to);
    return CopyFromDevice(*session->session, to, Address(from), Bytes(size));
  });
}

int torpor_work_begin(torpor_session* session, int64_t timeout_ms) {
  return torpor_work_begin_tags(session, nullptr, 0, timeout_ms);
}

int torpor_work_begin_tags(torpor_session* session, const char* const* tags, size_t tag_count,
                           int64_t timeout_ms) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    return BeginWork(session, tags, tag_count, timeout_ms);
  });
}

int torpor_work_end(torpor_session* session) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    return session->session->WorkEnd();
  });
}

int torpor_set_quiesce(torpor_session* session, int quiesce) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_ASSIGN_OR_RETURN(const wire::Quiesce mode, QuiesceMode(quiesce));
    return session->session->SetQuiesce(mode);
  });
}

int torpor_set_sleep_endpoint(torpor_session* session, const char* endpoint) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    return session->session->SetSleepEndpoint(Text(endpoint));
  });
}

int torpor_on_pause(torpor_session* session, torpor_pause_fn pause, torpor_resume_fn resume,
                    void* user) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    return SetCallbacks(session, pause, resume, user);
  });
}

int torpor_sleep(torpor_session* session, int level, const char* const* tags, size_t tag_count,
                 int64_t timeout_ms, torpor_sleep_result* result) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_RETURN_IF_ERROR(CheckResult(result));
    wire::Sleep request;
    TORPOR_ASSIGN_OR_RETURN(request.tags, Tags(tags, tag_count));
    request.level = level;
    request.timeout_ms = WireTimeout(timeout_ms);
    TORPOR_ASSIGN_OR_RETURN(const wire::SleepReply reply, session->session->Sleep(request));
    return ExportSleep(reply, result);
  });
}

int torpor_sleep_policies(torpor_session* session, const torpor_tag_policy* policies,
                          size_t policy_count, int force, int64_t timeout_ms,
                          torpor_sleep_result* result) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    if (policy_count > 0 && policies == nullptr) return NullArgument("policies");
    return SleepPolicies(session, policies, policy_count, force, timeout_ms, result);
  });
}

int torpor_wake_up(torpor_session* session, const char* const* tags, size_t tag_count,
                   const char* reservation, int64_t timeout_ms, torpor_sleep_result* result) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_RETURN_IF_ERROR(CheckResult(result));
    wire::WakeUp request;
    TORPOR_ASSIGN_OR_RETURN(request.tags, Tags(tags, tag_count));
    request.reservation = Text(reservation);
    request.timeout_ms = WireTimeout(timeout_ms);
    TORPOR_ASSIGN_OR_RETURN(const wire::SleepReply reply, session->session->WakeUp(request));
    return ExportSleep(reply, result);
  });
}

int torpor_usage(torpor_session* session, torpor_usage_info* usage, torpor_tag_usage* tags,
                 size_t capacity) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    TORPOR_REQUIRE(usage);
    return GetUsage(session, usage, tags, capacity);
  });
}

int torpor_report_usage(torpor_session* session, int64_t live_bytes, int64_t reserved_bytes) {
  return ReturnCode([&]() -> Status {
    TORPOR_REQUIRE(session);
    if (live_bytes < 0 || reserved_bytes < 0) {
      return torpor::InvalidArgument("BAD_SIZE", "a usage is negative");
    }
    return session->session->ReportUsage(Bytes(live_bytes), Bytes(reserved_bytes));
  });
}

}  // extern "C"
