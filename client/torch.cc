#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "client/fork_watch.h"
#include "client/last_error.h"
#include "client/session_handle.h"
#include "client/torpor.h"
#include "lib/base/mutex.h"

namespace torpor::client {
namespace {

constexpr char kDefaultTag[] = "default";

// Plain bytes, so that it is there for as long as the thread is. Empty: kDefaultTag.
thread_local char thread_tag[64];

// The sessions that PyTorch allocates from. Never destroyed: memory is freed until the very end.
class TorchSessions {
 public:
  static TorchSessions& Get() {
    static TorchSessions* const sessions = new TorchSessions();
    return *sessions;
  }

  // In a forked child the mutexes may be locked for good.
  bool Forked() const { return ForkGeneration() != generation_; }

  Result<torpor_session*> Open(int device) {
    if (Forked()) return ForkedStatus();
    MutexLock opening(open_mutex_);
    if (torpor_session* known = Find(device)) return known;
    torpor_options options = TORPOR_OPTIONS_INIT;
    options.device = device;
    options.socket_path = std::getenv("TORPOR_SOCKET");
    options.runtime_dir = std::getenv("TORPOR_RUNTIME_DIR");
    options.name = std::getenv("TORPOR_WORKER_NAME");
    options.reservation = std::getenv("TORPOR_RESERVATION");
    options.driver = std::getenv("TORPOR_DRIVER");
    TORPOR_ASSIGN_OR_RETURN(torpor_session* const session, OpenSession(&options));
    Use(session);
    return session;
  }

  void Use(torpor_session* session) {
    MutexLock lock(mutex_);
    current_[session->device] = session;
    if (std::find(all_.begin(), all_.end(), session) == all_.end()) all_.push_back(session);
  }

  void Forget(torpor_session* session) {
    MutexLock lock(mutex_);
    for (auto entry = current_.begin(); entry != current_.end();) {
      entry = entry->second == session ? current_.erase(entry) : std::next(entry);
    }
    all_.erase(std::remove(all_.begin(), all_.end(), session), all_.end());
  }

  torpor_session* Find(int device) const {
    MutexLock lock(mutex_);
    const auto found = current_.find(device);
    return found == current_.end() ? nullptr : found->second;
  }

  // The session that `address` belongs to.
  torpor_session* Owner(DeviceAddress address) const {
    MutexLock lock(mutex_);
    for (torpor_session* session : all_) {
      if (session->session->Find(address).ok()) return session;
    }
    return nullptr;
  }

 private:
  const uint64_t generation_ = ForkGeneration();
  Mutex open_mutex_;  // one session is opened at a time
  mutable Mutex mutex_;
  std::map<int, torpor_session*> current_ GUARDED_BY(mutex_);
  std::vector<torpor_session*> all_ GUARDED_BY(mutex_);
};

}  // namespace

void ForgetTorchSession(torpor_session* session) {
  if (!TorchSessions::Get().Forked()) TorchSessions::Get().Forget(session);
}

}  // namespace torpor::client

using torpor::Bytes;
using torpor::DeviceAddress;
using torpor::Status;
using torpor::client::ReturnCode;
using torpor::client::TorchSessions;

extern "C" {

void* torpor_torch_malloc(ssize_t size, int device, void*) {
  void* pointer = nullptr;
  ReturnCode([&]() -> Status {
    TORPOR_ASSIGN_OR_RETURN(torpor_session * session, TorchSessions::Get().Open(device));
    const char* tag = torpor::client::thread_tag[0] != '\0' ? torpor::client::thread_tag
                                                            : torpor::client::kDefaultTag;
    TORPOR_ASSIGN_OR_RETURN(const DeviceAddress address,
                            session->session->Allocate(tag, Bytes(size)));
    pointer = reinterpret_cast<void*>(address.value());
    return Status::Ok();
  });
  return pointer;
}

void torpor_torch_free(void* pointer, ssize_t, int, void*) {
  if (pointer == nullptr) return;
  ReturnCode([&]() -> Status {
    TorchSessions& sessions = TorchSessions::Get();
    if (sessions.Forked()) return torpor::client::ForkedStatus();
    const DeviceAddress address(reinterpret_cast<uintptr_t>(pointer));
    torpor_session* owner = sessions.Owner(address);
    return owner == nullptr ? Status::Ok() : owner->session->Free(address);
  });
}

int torpor_torch_set_tag(const char* tag) {
  return ReturnCode([&]() -> Status {
    const std::string name = tag == nullptr ? "" : tag;
    if (tag != nullptr) TORPOR_RETURN_IF_ERROR(torpor::CheckName(name, "tag", "BAD_TAG"));
    std::memcpy(torpor::client::thread_tag, name.c_str(), name.size() + 1);
    return Status::Ok();
  });
}

int torpor_torch_use(torpor_session* session) {
  return ReturnCode([&]() -> Status {
    if (session == nullptr) return torpor::InvalidArgument("NULL_ARGUMENT", "session is NULL");
    TorchSessions::Get().Use(session);
    return Status::Ok();
  });
}

int torpor_torch_session(int device, torpor_session** session) {
  return ReturnCode([&]() -> Status {
    if (session == nullptr) return torpor::InvalidArgument("NULL_ARGUMENT", "session is NULL");
    *session = nullptr;
    TORPOR_ASSIGN_OR_RETURN(*session, TorchSessions::Get().Open(device));
    return Status::Ok();
  });
}

}  // extern "C"
