// C++17 on top of torpor.h: the same calls with owners and exceptions. Header only, so it fits any
// standard library; what crosses into libtorpor.so is C.
#ifndef TORPOR_CLIENT_TORPOR_HPP_
#define TORPOR_CLIENT_TORPOR_HPP_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torpor.h"

namespace torpor {

// A call that failed. what() is everything that is known, in one line.
class Error : public std::runtime_error {
 public:
  explicit Error(const torpor_error* error)
      : std::runtime_error(torpor_error_text(error)),
        code_(torpor_error_code(error)),
        reason_(torpor_error_reason(error)) {}

  torpor_code code() const noexcept { return code_; }
  const std::string& reason() const noexcept { return reason_; }

 private:
  torpor_code code_;
  std::string reason_;
};

// Throws the error of this thread's last call unless `code` is TORPOR_OK.
inline void ThrowIfError(int code) {
  if (code != TORPOR_OK) throw Error(torpor_last_error());
}

// Owns a torpor_session. Move-only; its calls are as thread-safe as those of torpor.h.
class Session {
 public:
  using Timeout = std::optional<std::chrono::milliseconds>;

  explicit Session(const torpor_options& options) {
    torpor_session* session = nullptr;
    ThrowIfError(torpor_connect(&options, &session));
    session_.reset(session);
  }

  torpor_session* get() const noexcept { return session_.get(); }

  torpor_session_info Describe() const {
    torpor_session_info info{};
    info.struct_size = sizeof info;
    ThrowIfError(torpor_describe(get(), &info));
    return info;
  }

  void* Allocate(const std::string& tag, std::int64_t size) {
    void* address = nullptr;
    ThrowIfError(torpor_allocate(get(), tag.c_str(), size, &address));
    return address;
  }
  // Waits for memory; nothing: as long as it takes.
  void* AllocateWait(const std::string& tag, std::int64_t size, Timeout timeout = std::nullopt) {
    void* address = nullptr;
    ThrowIfError(torpor_allocate_wait(get(), tag.c_str(), size, Ms(timeout), &address));
    return address;
  }
  void Free(void* address) { ThrowIfError(torpor_free(get(), address)); }
  torpor_segment_info Segment(const void* address) const {
    torpor_segment_info info{};
    info.struct_size = sizeof info;
    ThrowIfError(torpor_segment(get(), address, &info));
    return info;
  }
  void CopyToDevice(void* to, const void* from, std::int64_t size) {
    ThrowIfError(torpor_copy_to_device(get(), to, from, size));
  }
  void CopyFromDevice(void* to, const void* from, std::int64_t size) const {
    ThrowIfError(torpor_copy_from_device(get(), to, from, size));
  }

  void SetQuiesce(torpor_quiesce quiesce) { ThrowIfError(torpor_set_quiesce(get(), quiesce)); }
  // Empty: none.
  void SetSleepEndpoint(const std::string& endpoint) {
    ThrowIfError(torpor_set_sleep_endpoint(get(), endpoint.c_str()));
  }

  // `pause` returns whether everything has stopped. Neither may throw.
  void OnPause(std::function<bool()> pause, std::function<void()> resume) {
    auto callbacks = std::make_unique<Callbacks>(Callbacks{std::move(pause), std::move(resume)});
    const bool any = callbacks->pause != nullptr;
    ThrowIfError(torpor_on_pause(get(), any ? &CallPause : nullptr, any ? &CallResume : nullptr,
                                 callbacks.get()));
    callbacks_ = std::move(callbacks);
  }

  torpor_sleep_result Sleep(int level, const std::vector<std::string>& tags = {},
                            Timeout timeout = std::nullopt) {
    torpor_sleep_result result = TORPOR_SLEEP_RESULT_INIT;
    const std::vector<const char*> names = Names(tags);
    ThrowIfError(torpor_sleep(get(), level, names.data(), names.size(), Ms(timeout), &result));
    return result;
  }
  torpor_sleep_result Sleep(const std::vector<torpor_tag_policy>& policies, bool force = false,
                            Timeout timeout = std::nullopt) {
    torpor_sleep_result result = TORPOR_SLEEP_RESULT_INIT;
    ThrowIfError(torpor_sleep_policies(get(), policies.data(), policies.size(), force ? 1 : 0,
                                       Ms(timeout), &result));
    return result;
  }
  torpor_sleep_result WakeUp(const std::vector<std::string>& tags = {},
                             const std::string& reservation = "", Timeout timeout = std::nullopt) {
    torpor_sleep_result result = TORPOR_SLEEP_RESULT_INIT;
    const std::vector<const char*> names = Names(tags);
    ThrowIfError(torpor_wake_up(get(), names.data(), names.size(),
                                reservation.empty() ? nullptr : reservation.c_str(), Ms(timeout),
                                &result));
    return result;
  }

  torpor_usage_info Usage(std::vector<torpor_tag_usage>* tags = nullptr) const {
    torpor_usage_info usage{};
    usage.struct_size = sizeof usage;
    ThrowIfError(torpor_usage(get(), &usage, nullptr, 0));
    if (tags != nullptr && usage.tag_count > 0) {
      tags->assign(usage.tag_count, torpor_tag_usage{});
      tags->front().struct_size = sizeof(torpor_tag_usage);
      ThrowIfError(torpor_usage(get(), &usage, tags->data(), tags->size()));
      if (usage.tag_count < tags->size()) tags->resize(usage.tag_count);
    } else if (tags != nullptr) {
      tags->clear();
    }
    return usage;
  }
  void ReportUsage(std::int64_t live_bytes, std::int64_t reserved_bytes) {
    ThrowIfError(torpor_report_usage(get(), live_bytes, reserved_bytes));
  }

 private:
  friend class WorkGuard;

  struct Callbacks {
    std::function<bool()> pause;
    std::function<void()> resume;
  };
  struct Close {
    void operator()(torpor_session* session) const noexcept { torpor_close(session); }
  };

  static int CallPause(void* user) { return static_cast<Callbacks*>(user)->pause() ? 0 : 1; }
  static void CallResume(void* user) {
    const Callbacks* callbacks = static_cast<Callbacks*>(user);
    if (callbacks->resume) callbacks->resume();
  }
  static std::int64_t Ms(Timeout timeout) {
    return timeout ? static_cast<std::int64_t>(timeout->count()) : TORPOR_NO_TIMEOUT;
  }
  static std::vector<const char*> Names(const std::vector<std::string>& tags) {
    std::vector<const char*> names;
    names.reserve(tags.size());
    for (const std::string& tag : tags) names.push_back(tag.c_str());
    return names;
  }

  std::unique_ptr<Callbacks> callbacks_;  // outlives the session, which calls them
  std::unique_ptr<torpor_session, Close> session_;
};

// Inside the work guard while it lives; see torpor_work_begin. Destroy it on the thread that made
// it.
class WorkGuard {
 public:
  explicit WorkGuard(const Session& session, const std::vector<std::string>& tags = {},
                     Session::Timeout timeout = std::nullopt)
      : session_(session.get()) {
    const std::vector<const char*> names = Session::Names(tags);
    ThrowIfError(
        torpor_work_begin_tags(session_, names.data(), names.size(), Session::Ms(timeout)));
  }
  ~WorkGuard() { torpor_work_end(session_); }
  WorkGuard(const WorkGuard&) = delete;
  WorkGuard& operator=(const WorkGuard&) = delete;

 private:
  torpor_session* session_;
};

}  // namespace torpor

#endif  // TORPOR_CLIENT_TORPOR_HPP_
