#include "client/tms.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/torpor.h"

namespace torpor::client {
namespace {

constexpr char kDefaultTag[] = "default";

bool EnvironmentSwitch(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return false;
  const std::string text = value;
  return text == "1" || text == "true" || text == "TRUE" || text == "yes" || text == "YES";
}

// What the calls of a thread have set.
struct Settings {
  bool interesting = EnvironmentSwitch("TMS_INIT_ENABLE");
  bool cpu_backup = EnvironmentSwitch("TMS_INIT_ENABLE_CPU_BACKUP");
  bool disk_backup = EnvironmentSwitch("TMS_INIT_ENABLE_DISK_BACKUP");
  std::string tag = kDefaultTag;
  std::string backend;
};

Settings& ThreadSettings() {
  thread_local Settings settings;
  return settings;
}

// Which of Torpor's tags stand for which regions. Never destroyed: memory is freed until the end.
class Regions {
 public:
  struct Kind {
    std::string name;  // Torpor's tag
    bool backup;
  };

  static Regions& Get() {
    static Regions* const regions = new Regions();
    return *regions;
  }

  // Has this thread allocate under Torpor's tag for `tag` of one kind, which is theirs from now on.
  // BAD_TAG is not: every later pause would fail with it.
  int SetTag(int device, const std::string& tag, bool backup) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Kind>& kinds = devices_[device][tag];
    for (const Kind& kind : kinds) {
      if (kind.backup == backup) return torpor_torch_set_tag(kind.name.c_str());
    }
    const char* suffix = kinds.empty() ? "" : backup ? ".backup" : ".scratch";
    std::string name = tag + suffix;
    const int code = torpor_torch_set_tag(name.c_str());
    if (code == TORPOR_OK) kinds.push_back({std::move(name), backup});
    return code;
  }

  // {device: what `tag` (empty: any) has there}
  std::map<int, std::vector<Kind>> Selected(const std::string& tag) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::map<int, std::vector<Kind>> selected;
    for (const auto& [device, tags] : devices_) {
      for (const auto& [known, kinds] : tags) {
        if (kinds.empty() || (!tag.empty() && known != tag)) continue;
        std::vector<Kind>& of_device = selected[device];
        of_device.insert(of_device.end(), kinds.begin(), kinds.end());
      }
    }
    return selected;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, std::map<std::string, std::vector<Kind>>> devices_;
};

int PauseDevice(torpor_session* session, const std::vector<Regions::Kind>& kinds) {
  std::vector<torpor_tag_policy> policies;
  policies.reserve(kinds.size());
  for (const Regions::Kind& kind : kinds) {
    policies.push_back({kind.name.c_str(), kind.backup ? TORPOR_OFFLOAD : TORPOR_DISCARD});
  }
  return torpor_sleep_policies(session, policies.data(), policies.size(), 0, TORPOR_NO_TIMEOUT,
                               nullptr);
}

int ResumeDevice(torpor_session* session, const std::vector<Regions::Kind>& kinds) {
  std::vector<const char*> tags;
  tags.reserve(kinds.size());
  for (const Regions::Kind& kind : kinds) tags.push_back(kind.name.c_str());
  return torpor_wake_up(session, tags.data(), tags.size(), nullptr, TORPOR_NO_TIMEOUT, nullptr);
}

template <typename Operation>
int OnEachDevice(const char* tag, Operation operation) noexcept {
  try {
    int first = TORPOR_OK;
    for (const auto& [device, kinds] : Regions::Get().Selected(tag == nullptr ? "" : tag)) {
      torpor_session* session = nullptr;
      int code = torpor_torch_session(device, &session);
      if (code == TORPOR_OK) code = operation(session, kinds);
      if (first == TORPOR_OK) first = code;
    }
    return first;
  } catch (const std::exception&) {
    return TORPOR_RESOURCE_EXHAUSTED;  // no memory for a few strings
  }
}

// Of the whole process; -1: as the environment says.
std::atomic<int> retain_cpu_backup{-1};

}  // namespace
}  // namespace torpor::client

using torpor::client::Regions;
using torpor::client::Settings;
using torpor::client::ThreadSettings;

extern "C" {

void* tms_torch_malloc(ssize_t size, int device, void* stream) {
  try {
    const Settings& settings = ThreadSettings();
    if (!settings.interesting || settings.disk_backup) return nullptr;
    if (Regions::Get().SetTag(device, settings.tag, settings.cpu_backup) != TORPOR_OK) {
      return nullptr;
    }
    void* address = torpor_torch_malloc(size, device, stream);
    torpor_torch_set_tag(nullptr);
    return address;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void tms_torch_free(void* address, ssize_t size, int device, void* stream) {
  torpor_torch_free(address, size, device, stream);
}

void tms_set_interesting_region(bool interesting) { ThreadSettings().interesting = interesting; }

bool tms_get_interesting_region() { return ThreadSettings().interesting; }

void tms_set_current_tag(const char* tag) {
  if (tag != nullptr) ThreadSettings().tag = tag;
}

const char* tms_get_current_tag() { return ThreadSettings().tag.c_str(); }

void tms_set_enable_cpu_backup(bool enable) { ThreadSettings().cpu_backup = enable; }

bool tms_get_enable_cpu_backup() { return ThreadSettings().cpu_backup; }

void tms_set_cpu_backup_backend(const char* backend) {
  if (backend != nullptr) ThreadSettings().backend = backend;
}

const char* tms_get_cpu_backup_backend() { return ThreadSettings().backend.c_str(); }

void tms_set_enable_disk_backup(bool enable) { ThreadSettings().disk_backup = enable; }

bool tms_get_enable_disk_backup() { return ThreadSettings().disk_backup; }

void tms_set_disk_backup_dir(const char*) {}

int tms_pause(const char* tag) {
  return torpor::client::OnEachDevice(tag, torpor::client::PauseDevice);
}

int tms_resume(const char* tag) {
  return torpor::client::OnEachDevice(tag, torpor::client::ResumeDevice);
}

uint8_t* tms_get_cpu_backup_pointer(const uint8_t*, uint64_t) { return nullptr; }

void tms_set_retain_cpu_backup(bool retain) { torpor::client::retain_cpu_backup = retain ? 1 : 0; }

bool tms_get_retain_cpu_backup() {
  const int set = torpor::client::retain_cpu_backup;
  return set < 0 ? torpor::client::EnvironmentSwitch("TMS_RETAIN_CPU_BACKUP") : set == 1;
}

void set_memory_margin_bytes(uint64_t) {}

}  // extern "C"
