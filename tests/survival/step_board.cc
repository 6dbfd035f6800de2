#include "tests/survival/step_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "lib/base/unique_fd.h"

namespace torpor::survival {
namespace {

constexpr size_t kMostSteps = 512;
constexpr size_t kLongestName = 96;
constexpr Duration kLook = std::chrono::microseconds(200);

enum What : int { kNothing, kStop, kFail };

}  // namespace

std::string Step::ToString() const {
  return number == 0 ? name : name + " " + std::to_string(number);
}

struct StepBoard::Shared {
  std::atomic<int> armed;  // What; written last
  char name[kLongestName];
  std::atomic<int> left;  // calls of that name until it acts
  std::atomic<int> reached;
  std::atomic<int> released;

  std::atomic<int> tracing;
  std::atomic<size_t> noted;
  struct Note {
    std::atomic<int> complete;
    char name[kLongestName];
  };
  Note notes[kMostSteps];
};

Result<std::unique_ptr<StepBoard>> StepBoard::Map(const std::string& path, int flags) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "open " + path);
  if (flags != 0 && ::ftruncate(file.get(), sizeof(Shared)) != 0) {
    return ErrnoStatus(errno, "size " + path);
  }
  void* const map =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) return ErrnoStatus(errno, "map " + path);
  // All zero is its first state.
  return std::unique_ptr<StepBoard>(new StepBoard(static_cast<Shared*>(map)));
}

Result<std::unique_ptr<StepBoard>> StepBoard::Create(const std::string& path) {
  return Map(path, O_CREAT | O_EXCL);
}

Result<std::unique_ptr<StepBoard>> StepBoard::Open() {
  const char* const path = std::getenv(kEnvironment);
  if (path == nullptr) {
    return InvalidArgument("NO_STEP_BOARD", std::string(kEnvironment) + " is not set");
  }
  return Map(path, 0);
}

StepBoard::~StepBoard() { ::munmap(shared_, sizeof(Shared)); }

Status StepBoard::Enter(const std::string& name) {
  Shared& shared = *shared_;
  if (shared.tracing != 0) {
    const size_t at = shared.noted++;
    if (at < kMostSteps) {
      std::strncpy(shared.notes[at].name, name.c_str(), kLongestName - 1);
      shared.notes[at].complete = 1;
    }
  }
  const int what = shared.armed;
  if (what == kNothing || name != shared.name || --shared.left != 0) return Status::Ok();
  shared.armed = kNothing;
  shared.reached = 1;
  if (what == kFail) return Internal("INJECTED", "made to fail: " + name);
  while (shared.released == 0) std::this_thread::sleep_for(kLook);
  return Status::Ok();
}

void StepBoard::Trace() {
  for (Shared::Note& note : shared_->notes) note.complete = 0;
  shared_->noted = 0;
  shared_->tracing = 1;
}

void StepBoard::Arm(const Step& step, int what) {
  shared_->armed = kNothing;
  std::memset(shared_->name, 0, kLongestName);
  std::strncpy(shared_->name, step.name.c_str(), kLongestName - 1);
  shared_->left = step.number;
  shared_->reached = 0;
  shared_->released = 0;
  shared_->armed = what;
}

void StepBoard::StopAt(const Step& step) { Arm(step, kStop); }
void StepBoard::FailAt(const Step& step) { Arm(step, kFail); }
bool StepBoard::reached() const { return shared_->reached != 0; }

std::vector<Step> StepBoard::Disarm() {
  shared_->armed = kNothing;
  shared_->released = 1;
  std::vector<Step> steps;
  if (shared_->tracing.exchange(0) == 0) return steps;
  std::map<std::string, int> numbers;
  const size_t noted = std::min<size_t>(shared_->noted, kMostSteps);
  for (size_t i = 0; i < noted; ++i) {
    if (shared_->notes[i].complete == 0) continue;
    const std::string name = shared_->notes[i].name;
    steps.push_back({name, ++numbers[name]});
  }
  return steps;
}

}  // namespace torpor::survival
