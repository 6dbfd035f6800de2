#include "tests/worker/test_worker.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "lib/base/units.h"
#include "tests/worker/pattern.h"
#include "tests/worker/raw_frames.h"

namespace torpor {
namespace {

// How long a command waits for memory that is asleep.
constexpr int64_t kGuardMs = 2000;
constexpr int64_t kWorkStep = 4096;

std::vector<std::string> Split(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string Failure() {
  const torpor_error* error = torpor_last_error();
  std::string text = torpor_error_text(error);
  const size_t colon = text.find(':');
  if (colon != std::string::npos) text.erase(colon, 1);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return "error " + text;
}

std::string Outcome(int code) { return code == TORPOR_OK ? "ok" : Failure(); }

std::string LimitDescriptors(int64_t limit) {
  rlimit limits{};
  if (::getrlimit(RLIMIT_NOFILE, &limits) != 0) return "error INTERNAL GETRLIMIT";
  limits.rlim_cur = limit < 0 ? limits.rlim_max : static_cast<rlim_t>(limit);
  return ::setrlimit(RLIMIT_NOFILE, &limits) == 0 ? "ok" : "error INTERNAL SETRLIMIT";
}

std::string BadCommand(const std::string& why) {
  return "error INVALID_ARGUMENT BAD_COMMAND " + why;
}

std::string Hex(const void* address) {
  char text[24];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

std::string SleepOutcome(int code, const torpor_sleep_result& result) {
  if (code != TORPOR_OK) return Failure();
  return "ok device=" + std::to_string(result.device_bytes) +
         " copied=" + std::to_string(result.copied_bytes) +
         " discarded=" + std::to_string(result.discarded_bytes);
}

// "name=value" words after the first; others are left in `rest`.
std::map<std::string, std::string> Options(const std::vector<std::string>& words,
                                           std::vector<const char*>& rest) {
  std::map<std::string, std::string> options;
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equal = words[i].find('=');
    if (equal == std::string::npos) {
      rest.push_back(words[i].c_str());
    } else {
      options[words[i].substr(0, equal)] = words[i].substr(equal + 1);
    }
  }
  return options;
}

int64_t Timeout(const std::map<std::string, std::string>& options) {
  const auto found = options.find("timeout");
  return found == options.end() ? TORPOR_NO_TIMEOUT : std::atoll(found->second.c_str());
}

std::optional<torpor_quiesce> QuiesceMode(const std::string& name) {
  if (name == "none") return TORPOR_QUIESCE_NONE;
  if (name == "synchronize") return TORPOR_QUIESCE_SYNCHRONIZE;
  if (name == "guard") return TORPOR_QUIESCE_GUARD;
  if (name == "callback") return TORPOR_QUIESCE_CALLBACK;
  return std::nullopt;
}

std::optional<torpor_policy> PolicyByName(const std::string& name) {
  if (name == "keep") return TORPOR_KEEP;
  if (name == "offload") return TORPOR_OFFLOAD;
  if (name == "discard") return TORPOR_DISCARD;
  return std::nullopt;
}

}  // namespace

TestWorker::~TestWorker() { StopWork(); }

std::string TestWorker::Do(const std::string& line) {
  const Words words = Split(line);
  if (words.empty()) return BadCommand("empty line");
  if (words[0] == "bg") return Background(line.substr(line.find("bg") + 2));
  if (words[0] == "wait") return Wait();
  return Dispatch(words);
}

std::string TestWorker::Dispatch(const Words& words) {
  const std::string& command = words[0];
  if (command == "pid") return "ok " + std::to_string(::getpid());
  if (command == "nofile" && words.size() == 2) {
    return LimitDescriptors(std::atoll(words[1].c_str()));
  }
  if (command == "connect") return Connect(words);
  if (command == "raw" && words.size() >= 3) {
    return SendBadFrame(words[1], words[2], words.size() > 3 && words[3] == "after_hello");
  }
  if (command == "hold" && words.size() == 3) {
    return HoldMemory(words[1], ParseBytes(words[2]).ok() ? *ParseBytes(words[2]) : Bytes(0));
  }
  if (command == "fork") return Fork();
  if (command == "iterations") return Iterations();
  if (command == "stop_work") return StopWork();
  if (command == "callbacks") {
    return "ok paused=" + std::to_string(paused_) + " resumed=" + std::to_string(resumed_);
  }
  if (command == "close") return Outcome(torpor_close(std::exchange(session_, nullptr)));
  if (session_ == nullptr) return BadCommand("not connected, or unknown: " + command);
  if (command == "alloc") return Allocate(words);
  if (command == "fill") return Fill(words);
  if (command == "check") return Check(words, false);
  if (command == "checkzero") return Check(words, true);
  if (command == "forget") return Forget(words);
  if (command == "address") return Address(words);
  if (command == "segments") return Segments();
  if (command == "free") return Free(words, false);
  if (command == "freeany") return Free(words, true);
  if (command == "sleep") return Sleep(words);
  if (command == "sleep_policies") return SleepPolicies(words);
  if (command == "wake") return WakeUp(words);
  if (command == "usage") return Usage();
  if (command == "report" && words.size() == 3) {
    return Outcome(
        torpor_report_usage(session_, std::atoll(words[1].c_str()), std::atoll(words[2].c_str())));
  }
  if (command == "work") return StartWork(words);
  if (command == "guard_begin") return GuardBegin(words);
  if (command == "guard_end") return Outcome(torpor_work_end(session_));
  if (command == "quiesce") return SetQuiesce(words);
  if (command == "sleep_endpoint") return SetSleepEndpoint(words);
  if (command == "on_pause") return SetCallbacks(words);
  return BadCommand("unknown: " + command);
}

std::string TestWorker::Background(const std::string& line) {
  if (background_.valid()) return BadCommand("one command is in the background already");
  background_ = std::async(std::launch::async, [this, words = Split(line)] {
    return words.empty() ? BadCommand("empty line") : Dispatch(words);
  });
  return "ok";
}

std::string TestWorker::Wait() {
  return background_.valid() ? background_.get() : BadCommand("nothing is in the background");
}

std::string TestWorker::Connect(const Words& words) {
  std::vector<const char*> rest;
  std::map<std::string, std::string> given = Options(words, rest);
  const auto text = [&given](const char* key) -> const char* {
    const auto found = given.find(key);
    return found == given.end() ? nullptr : found->second.c_str();
  };
  torpor_options options = TORPOR_OPTIONS_INIT;
  options.socket_path = text("socket");
  options.runtime_dir = text("runtime_dir");
  options.name = text("name");
  options.device_uuid = text("uuid");
  options.reservation = text("reservation");
  options.driver = text("driver") != nullptr ? text("driver") : "host";
  if (given.count("quiesce") != 0) {
    const auto mode = QuiesceMode(given["quiesce"]);
    if (!mode || !rest.empty()) return BadCommand("connect");
    options.quiesce = *mode;
  }
  if (torpor_connect(&options, &session_) != TORPOR_OK) return Failure();
  torpor_session_info info{};
  info.struct_size = sizeof info;
  if (torpor_describe(session_, &info) != TORPOR_OK) return Failure();
  return "ok worker=" + std::to_string(info.worker_id) + " device=" + info.device_uuid +
         " kind=" + info.device_kind + " granularity=" + std::to_string(info.granularity_bytes);
}

std::string TestWorker::Allocate(const Words& words) {
  std::vector<const char*> rest;
  const std::map<std::string, std::string> given = Options(words, rest);
  const int64_t timeout = given.count("timeout") == 0 ? 0 : Timeout(given);
  if (rest.size() < 2) return BadCommand("alloc TAG SIZE [SEED] [timeout=MS]");
  const Result<Bytes> parsed = ParseBytes(words[2]);
  const int64_t size = parsed.ok() ? parsed->value() : std::atoll(words[2].c_str());
  void* address = nullptr;
  if (torpor_allocate_wait(session_, words[1].c_str(), size, timeout, &address) != TORPOR_OK) {
    return Failure();
  }
  torpor_segment_info info{};
  info.struct_size = sizeof info;
  if (torpor_segment(session_, address, &info) != TORPOR_OK) return Failure();
  Segment segment{static_cast<char*>(address), info.size, words[1], std::nullopt};
  uint64_t id = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    id = ++last_id_;
    segments_[id] = segment;
  }
  if (rest.size() > 2) {
    std::string filled = Fill({"fill", std::to_string(id), rest[2]});
    if (filled != "ok") return filled;
  }
  return "ok " + std::to_string(id) + " " + Hex(address) + " " + std::to_string(info.size);
}

std::optional<TestWorker::Segment> TestWorker::Find(const Words& words) {
  if (words.size() < 2) return std::nullopt;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = segments_.find(std::strtoull(words[1].c_str(), nullptr, 10));
  if (found == segments_.end()) return std::nullopt;
  return found->second;
}

std::string TestWorker::Fill(const Words& words) {
  const auto segment = Find(words);
  if (!segment || words.size() != 3) return BadCommand("fill ID SEED");
  const uint64_t seed = std::strtoull(words[2].c_str(), nullptr, 10);
  const char* const tag = segment->tag.c_str();
  if (torpor_work_begin_tags(session_, &tag, 1, kGuardMs) != TORPOR_OK) return Failure();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    FillPattern(segment->address, segment->size, seed);
    segments_[std::strtoull(words[1].c_str(), nullptr, 10)].seed = seed;
  }
  return Outcome(torpor_work_end(session_));
}

std::string TestWorker::Check(const Words& words, bool zero) {
  const auto segment = Find(words);
  if (!segment || words.size() != (zero ? 2u : 3u))
    return BadCommand("check ID SEED, checkzero ID");
  const char* const tag = segment->tag.c_str();
  if (torpor_work_begin_tags(session_, &tag, 1, kGuardMs) != TORPOR_OK) return Failure();
  const std::optional<int64_t> difference =
      zero ? FindNonzero(segment->address, segment->size)
           : FindDifference(segment->address, segment->size,
                            std::strtoull(words[2].c_str(), nullptr, 10));
  const int byte = difference ? static_cast<unsigned char>(segment->address[*difference]) : 0;
  if (torpor_work_end(session_) != TORPOR_OK) return Failure();
  if (!difference) return "ok";
  return "error DATA_LOSS DIFFERENT at offset " + std::to_string(*difference) + ": " +
         std::to_string(byte);
}

std::string TestWorker::Forget(const Words& words) {
  if (!Find(words)) return BadCommand("forget ID");
  const std::lock_guard<std::mutex> lock(mutex_);
  segments_[std::strtoull(words[1].c_str(), nullptr, 10)].seed = std::nullopt;
  return "ok";
}

std::string TestWorker::Address(const Words& words) {
  const auto segment = Find(words);
  return segment ? "ok " + Hex(segment->address) : BadCommand("address ID");
}

std::string TestWorker::Segments() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string all = "ok";
  for (const auto& [id, segment] : segments_) {
    all += " " + std::to_string(id) + "=" + segment.tag + ":" + std::to_string(segment.size);
  }
  return all;
}

std::string TestWorker::Free(const Words& words, bool elsewhere) {
  const auto segment = Find(words);
  if (!segment) return BadCommand("free ID");
  const uint64_t id = std::strtoull(words[1].c_str(), nullptr, 10);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    segments_.erase(id);
  }
  const auto free_it = [&] { return Outcome(torpor_free(session_, segment->address)); };
  std::string freed = elsewhere ? std::async(std::launch::async, free_it).get() : free_it();
  if (freed != "ok") {
    const std::lock_guard<std::mutex> lock(mutex_);
    segments_[id] = *segment;
  }
  return freed;
}

void TestWorker::FreeAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, segment] : segments_) torpor_free(session_, segment.address);
  segments_.clear();
}

std::string TestWorker::Sleep(const Words& words) {
  std::vector<const char*> tags;
  const int64_t timeout = Timeout(Options(words, tags));
  if (tags.empty()) return BadCommand("sleep LEVEL [TAG...] [timeout=MS]");
  torpor_sleep_result result = TORPOR_SLEEP_RESULT_INIT;
  // The first of the rest is the level.
  const int code = torpor_sleep(session_, std::atoi(words[1].c_str()), tags.data() + 1,
                                tags.size() - 1, timeout, &result);
  return SleepOutcome(code, result);
}

std::string TestWorker::SleepPolicies(const Words& words) {
  std::vector<const char*> rest;
  const std::map<std::string, std::string> given = Options(words, rest);
  std::vector<torpor_tag_policy> policies;
  for (const auto& [tag, name] : given) {
    if (tag == "timeout") continue;
    const auto policy = PolicyByName(name);
    if (!policy) return BadCommand("sleep_policies TAG=keep|offload|discard... [force]");
    policies.push_back({tag.c_str(), *policy});
  }
  const bool force = !rest.empty() && std::string(rest[0]) == "force";
  torpor_sleep_result result = TORPOR_SLEEP_RESULT_INIT;
  const int code = torpor_sleep_policies(session_, policies.data(), policies.size(), force ? 1 : 0,
                                         Timeout(given), &result);
  return SleepOutcome(code, result);
}

std::string TestWorker::WakeUp(const Words& words) {
  std::vector<const char*> tags;
  const std::map<std::string, std::string> given = Options(words, tags);
  const auto reservation = given.find("reservation");
  torpor_sleep_result result = TORPOR_SLEEP_RESULT_INIT;
  const int code = torpor_wake_up(
      session_, tags.data(), tags.size(),
      reservation == given.end() ? nullptr : reservation->second.c_str(), Timeout(given), &result);
  return SleepOutcome(code, result);
}

std::string TestWorker::Usage() {
  torpor_usage_info usage{};
  usage.struct_size = sizeof usage;
  torpor_tag_usage tags[16] = {};
  tags[0].struct_size = sizeof tags[0];
  if (torpor_usage(session_, &usage, tags, 16) != TORPOR_OK) return Failure();
  std::string text = "ok total=" + std::to_string(usage.device_total_bytes) +
                     " free=" + std::to_string(usage.device_free_bytes) +
                     " available=" + std::to_string(usage.available_bytes);
  for (size_t i = 0; i < usage.tag_count && i < 16; ++i) {
    text += std::string(" ") + tags[i].tag + "=" + std::to_string(tags[i].segments) + "," +
            std::to_string(tags[i].resident_bytes) + "," + std::to_string(tags[i].offloaded_bytes) +
            "," + std::to_string(tags[i].discarded_bytes);
  }
  return text;
}

std::string TestWorker::StartWork(const Words& words) {
  if (working_) return BadCommand("work goes on already");
  working_ = true;
  const int threads = words.size() > 1 ? std::atoi(words[1].c_str()) : 1;
  for (int i = 0; i < threads; ++i) work_.emplace_back([this] { Work(); });
  return "ok";
}

// A step reads a byte of every page of every segment and compares it, inside the guard.
void TestWorker::Work() {
  while (working_) {
    if (torpor_work_begin(session_, 50) != TORPOR_OK) continue;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [id, segment] : segments_) {
        const auto* words = reinterpret_cast<const volatile uint64_t*>(segment.address);
        for (int64_t at = 0; at < segment.size; at += kWorkStep) {
          const uint64_t word = words[at / 8];
          if (segment.seed && word != PatternWord(*segment.seed, static_cast<uint64_t>(at / 8))) {
            ++wrong_bytes_;
          }
        }
      }
    }
    torpor_work_end(session_);
    ++iterations_;
  }
}

std::string TestWorker::StopWork() {
  working_ = false;
  for (std::thread& thread : work_) thread.join();
  work_.clear();
  return "ok";
}

std::string TestWorker::Iterations() {
  if (wrong_bytes_ != 0) {
    return "error DATA_LOSS DIFFERENT in " + std::to_string(wrong_bytes_) + " places";
  }
  return "ok " + std::to_string(iterations_);
}

std::string TestWorker::GuardBegin(const Words& words) {
  std::vector<const char*> tags;
  const std::map<std::string, std::string> given = Options(words, tags);
  return Outcome(torpor_work_begin_tags(session_, tags.data(), tags.size(), Timeout(given)));
}

std::string TestWorker::SetQuiesce(const Words& words) {
  const auto mode = words.size() == 2 ? QuiesceMode(words[1]) : std::nullopt;
  if (!mode) return BadCommand("quiesce none|synchronize|guard|callback");
  return Outcome(torpor_set_quiesce(session_, *mode));
}

std::string TestWorker::SetSleepEndpoint(const Words& words) {
  std::string text;
  for (size_t i = 1; i < words.size(); ++i) text += (i > 1 ? " " : "") + words[i];
  return Outcome(torpor_set_sleep_endpoint(session_, text.empty() ? nullptr : text.c_str()));
}

std::string TestWorker::SetCallbacks(const Words& words) {
  if (words.size() < 2) return BadCommand("on_pause accept|refuse|none [MS]");
  pause_answer_ = words[1] == "refuse" ? 1 : 0;
  pause_ms_ = words.size() > 2 ? std::atoi(words[2].c_str()) : 0;
  const bool none = words[1] == "none";
  return Outcome(
      torpor_on_pause(session_, none ? nullptr : &OnPause, none ? nullptr : &OnResume, this));
}

int TestWorker::OnPause(void* self) {
  auto* worker = static_cast<TestWorker*>(self);
  std::this_thread::sleep_for(std::chrono::milliseconds(worker->pause_ms_));
  ++worker->paused_;
  return worker->pause_answer_;
}

void TestWorker::OnResume(void* self) { ++static_cast<TestWorker*>(self)->resumed_; }

// What a forked child gets from its parent's session.
std::string TestWorker::Fork() {
  int ends[2];
  if (::pipe(ends) != 0) return BadCommand("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    torpor_usage_info usage{};
    usage.struct_size = sizeof usage;
    const std::string reason = session_ == nullptr ? "NO_SESSION"
                               : torpor_usage(session_, &usage, nullptr, 0) == TORPOR_OK
                                   ? "OK"
                                   : torpor_error_reason(torpor_last_error());
    (void)!::write(ends[1], reason.data(), reason.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  char reason[64] = {};
  (void)!::read(ends[0], reason, sizeof reason - 1);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? "ok " + std::string(reason) : BadCommand("the child failed");
}

}  // namespace torpor
