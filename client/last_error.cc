#include "client/last_error.h"

#include <pthread.h>

#include <cstddef>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "client/torpor.h"

using torpor::Status;

struct torpor_error {
  Status status;
  std::string text;
};

namespace torpor::client {
namespace {

// Not thread_local objects: a library's callers free memory in destructors that run after those of
// the main thread's thread_local objects.
thread_local torpor_error* last_error = nullptr;
pthread_key_t cleanup_key;

void CleanUp(void* error) {
  last_error = nullptr;
  delete static_cast<torpor_error*>(error);
}

bool HaveCleanupKey() {
  static std::once_flag once;
  static bool made = false;
  std::call_once(once, [] { made = ::pthread_key_create(&cleanup_key, &CleanUp) == 0; });
  return made;
}

const torpor_error& NoError() {
  static const torpor_error* const none = new torpor_error{Status(), "OK"};
  return *none;
}

}  // namespace

int SetLastError(Status status) noexcept {
  const int code = static_cast<int>(status.code());
  try {
    if (last_error == nullptr) {
      last_error = new torpor_error();
      if (HaveCleanupKey()) ::pthread_setspecific(cleanup_key, last_error);
    }
    last_error->text = status.ToString();
    last_error->status = std::move(status);
  } catch (...) {
    // Out of memory: the code has to do.
  }
  return code;
}

}  // namespace torpor::client

using torpor::client::last_error;

namespace {

const torpor_error& Given(const torpor_error* error) {
  return error != nullptr ? *error : torpor::client::NoError();
}

}  // namespace

extern "C" {

const torpor_error* torpor_last_error(void) { return &Given(last_error); }

torpor_code torpor_error_code(const torpor_error* error) {
  return static_cast<torpor_code>(Given(error).status.code());
}

const char* torpor_error_reason(const torpor_error* error) {
  return Given(error).status.reason().c_str();
}

const char* torpor_error_message(const torpor_error* error) {
  return Given(error).status.message().c_str();
}

const char* torpor_error_detail(const torpor_error* error, const char* key) {
  if (key == nullptr) return nullptr;
  const auto& details = Given(error).status.details();
  const auto found = details.find(key);
  return found == details.end() ? nullptr : found->second.c_str();
}

int torpor_error_number(const torpor_error* error, const char* key, int64_t* value) {
  if (key == nullptr || value == nullptr) return 0;
  const auto number = Given(error).status.Number(key);
  if (number) *value = *number;
  return number ? 1 : 0;
}

int torpor_error_detail_at(const torpor_error* error, size_t index, const char** key,
                           const char** value) {
  if (key == nullptr || value == nullptr) return 0;
  const auto& details = Given(error).status.details();
  if (index >= details.size()) return 0;
  const auto detail = std::next(details.begin(), static_cast<ptrdiff_t>(index));
  *key = detail->first.c_str();
  *value = detail->second.c_str();
  return 1;
}

const char* torpor_error_text(const torpor_error* error) { return Given(error).text.c_str(); }

const char* torpor_code_name(int code) {
  return torpor::CodeName(static_cast<torpor::Code>(code)).data();
}

}  // extern "C"
