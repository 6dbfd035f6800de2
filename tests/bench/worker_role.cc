#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/torpor.h"
#include "tests/bench/model_load.h"
#include "tests/bench/role.h"

namespace torpor::bench {
namespace {

// Content comes from one block of random bytes, at an offset that is another one for each piece of
// a segment: quick to write and to compare, and a chunk in a wrong place is noticed.
constexpr Bytes kPattern = MiB(64);
constexpr Bytes kPiece = MiB(16);
constexpr Bytes kChunk = MiB(2);  // of an image
constexpr int64_t kAlignment = 64;
constexpr int64_t kOffsets = (kPattern - kPiece).value() / kAlignment;
constexpr int kThreads = 8;

double MicrosecondsSince(TimePoint start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Status CStatus(int code) {
  if (code == TORPOR_OK) return Status::Ok();
  const torpor_error* const error = torpor_last_error();
  return Status(static_cast<Code>(code), torpor_error_reason(error), torpor_error_text(error));
}

struct Segment {
  char* address = nullptr;
  int64_t size = 0;
};
struct Piece {
  size_t segment = 0;
  int64_t offset = 0;
  int64_t size = 0;
};

class Worker {
 public:
  ~Worker() { torpor_close(session_); }

  Status Open(const std::string& socket, const std::string& driver, ModelLoad load);
  Result<std::string> Do(const std::vector<std::string>& words);

 private:
  Result<std::string> Allocate();
  Result<std::string> Fill(int64_t generation);
  Result<std::string> Dirty(int64_t every);
  Result<std::string> Verify();
  Status VerifyPiece(const Piece& piece, char* buffer) const;

  const char* Content(const Piece& piece) const {
    const auto random =
        Mix(piece.segment << 32 | static_cast<uint64_t>(piece.offset / kPiece.value()));
    const auto offset = (random + static_cast<uint64_t>(generation_) * 104729) % kOffsets;
    return pattern_->data() + offset * kAlignment;
  }
  static std::vector<Piece> Pieces(const std::vector<Segment>& segments);

  ModelLoad load_;
  torpor_session* session_ = nullptr;
  std::unique_ptr<Driver> driver_;  // CUDA: has registered the host memory
  std::unique_ptr<HostMemory> pattern_;
  std::unique_ptr<HostMemory> buffers_;  // a piece for each thread
  std::vector<Segment> weights_;
  std::vector<Segment> kv_cache_;
  int64_t generation_ = 0;
  uint64_t changes_ = 0;
  // By segment and offset: words that are not the pattern's.
  std::map<std::pair<size_t, int64_t>, uint64_t> changed_;
};

Status Worker::Open(const std::string& socket, const std::string& driver, ModelLoad load) {
  load_ = std::move(load);
  torpor_options options = TORPOR_OPTIONS_INIT;
  options.socket_path = socket.c_str();
  options.driver = driver.c_str();
  options.name = "bench";
  options.quiesce = TORPOR_QUIESCE_GUARD;
  TORPOR_RETURN_IF_ERROR(CStatus(torpor_connect(&options, &session_)));
  TORPOR_ASSIGN_OR_RETURN(pattern_, HostMemory::Map(kPattern));
  TORPOR_ASSIGN_OR_RETURN(buffers_, HostMemory::Map(kPiece * kThreads));
  TORPOR_RETURN_IF_ERROR(InParallel(ProcessorCount(), kPattern / kPiece, [this](int, int64_t i) {
    auto* const words = reinterpret_cast<uint64_t*>(pattern_->data() + i * kPiece.value());
    const auto first = static_cast<uint64_t>(i * kPiece.value());
    for (uint64_t word = 0; word < kPiece.size() / 8; ++word) words[word] = Mix(first + word * 8);
    return Status::Ok();
  }));
  if (driver == "host") return Status::Ok();
  buffers_->Touch();
  TORPOR_ASSIGN_OR_RETURN(driver_, OpenRoleDriver(driver, Bytes(0)));
  TORPOR_RETURN_IF_ERROR(driver_->RegisterHost(pattern_->data(), pattern_->size()));
  return driver_->RegisterHost(buffers_->data(), buffers_->size());
}

Result<std::string> Worker::Do(const std::vector<std::string>& words) {
  const int64_t number = words.size() > 1 ? std::stoll(words[1]) : 0;
  if (words[0] == "allocate") return Allocate();
  if (words[0] == "fill") return Fill(number);
  if (words[0] == "dirty" && number > 0) return Dirty(number);
  if (words[0] == "verify") return Verify();
  return InvalidArgument("BAD_COMMAND", words[0]);
}

Result<std::string> Worker::Allocate() {
  double all = 0;
  double worst = 0;
  for (const Bytes size : load_.weights) {
    void* address = nullptr;
    const TimePoint start = std::chrono::steady_clock::now();
    const int code = torpor_allocate(session_, "weights", size.value(), &address);
    const double taken = MicrosecondsSince(start);
    TORPOR_RETURN_IF_ERROR(CStatus(code));
    all += taken;
    worst = std::max(worst, taken);
    weights_.push_back({static_cast<char*>(address), size.value()});
  }
  for (const Bytes size : load_.kv_cache) {
    void* address = nullptr;
    TORPOR_RETURN_IF_ERROR(CStatus(torpor_allocate(session_, "kv_cache", size.value(), &address)));
    kv_cache_.push_back({static_cast<char*>(address), size.value()});
  }
  // What a sleep drops is not 0 before.
  const std::vector<Piece> pieces = Pieces(kv_cache_);
  TORPOR_RETURN_IF_ERROR(
      InParallel(kThreads, static_cast<int64_t>(pieces.size()), [&](int, int64_t i) {
        const Piece& piece = pieces[static_cast<size_t>(i)];
        return CStatus(torpor_copy_to_device(session_,
                                             kv_cache_[piece.segment].address + piece.offset,
                                             pattern_->data(), piece.size));
      }));
  return "us=" + std::to_string(all / static_cast<double>(weights_.size())) +
         " worst_us=" + std::to_string(worst);
}

std::vector<Piece> Worker::Pieces(const std::vector<Segment>& segments) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (int64_t at = 0; at < segments[i].size; at += kPiece.value()) {
      pieces.push_back({i, at, std::min(kPiece.value(), segments[i].size - at)});
    }
  }
  return pieces;
}

Result<std::string> Worker::Fill(int64_t generation) {
  generation_ = generation;
  changed_.clear();
  const TimePoint start = std::chrono::steady_clock::now();
  const std::vector<Piece> pieces = Pieces(weights_);
  TORPOR_RETURN_IF_ERROR(
      InParallel(kThreads, static_cast<int64_t>(pieces.size()), [&](int, int64_t i) {
        const Piece& piece = pieces[static_cast<size_t>(i)];
        return CStatus(torpor_copy_to_device(
            session_, weights_[piece.segment].address + piece.offset, Content(piece), piece.size));
      }));
  return "ms=" + std::to_string(MicrosecondsSince(start) / 1000);
}

Result<std::string> Worker::Dirty(int64_t every) {
  ++changes_;
  int64_t chunk = static_cast<int64_t>(changes_);  // other chunks each time
  int64_t count = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    for (int64_t at = 0; at < weights_[i].size; at += kChunk.value(), ++chunk) {
      if (chunk % every != 0) continue;
      const int64_t words = std::min(kChunk.value(), weights_[i].size - at) / 8;
      const int64_t offset =
          at + static_cast<int64_t>(Mix(changes_ << 32 | static_cast<uint64_t>(chunk)) %
                                    static_cast<uint64_t>(words)) *
                   8;
      const uint64_t word = Mix(changes_ ^ static_cast<uint64_t>(offset) << 20);
      TORPOR_RETURN_IF_ERROR(CStatus(
          torpor_copy_to_device(session_, weights_[i].address + offset, &word, sizeof word)));
      changed_[{i, offset}] = word;
      ++count;
    }
  }
  return "chunks=" + std::to_string(count);
}

Status Worker::VerifyPiece(const Piece& piece, char* buffer) const {
  TORPOR_RETURN_IF_ERROR(CStatus(torpor_copy_from_device(
      session_, buffer, weights_[piece.segment].address + piece.offset, piece.size)));
  const char* const content = Content(piece);
  const auto end = changed_.lower_bound({piece.segment, piece.offset + piece.size});
  for (auto it = changed_.lower_bound({piece.segment, piece.offset}); it != end; ++it) {
    const int64_t at = it->first.second - piece.offset;
    if (std::memcmp(buffer + at, &it->second, sizeof it->second) != 0) {
      return Internal("DIFFERENT", "a changed word of segment " + std::to_string(piece.segment) +
                                       " is lost, at " + std::to_string(it->first.second));
    }
    std::memcpy(buffer + at, content + at, sizeof it->second);
  }
  if (std::memcmp(buffer, content, static_cast<size_t>(piece.size)) == 0) return Status::Ok();
  return Internal("DIFFERENT", "segment " + std::to_string(piece.segment) +
                                   " has other bytes, behind " + std::to_string(piece.offset));
}

Result<std::string> Worker::Verify() {
  const std::vector<Piece> weights = Pieces(weights_);
  const std::vector<Piece> kv_cache = Pieces(kv_cache_);
  const auto count = static_cast<int64_t>(weights.size());
  TORPOR_RETURN_IF_ERROR(InParallel(
      kThreads, count + static_cast<int64_t>(kv_cache.size()), [&](int thread, int64_t i) {
        char* const buffer = buffers_->data() + thread * kPiece.value();
        if (i < count) return VerifyPiece(weights[static_cast<size_t>(i)], buffer);
        const Piece& piece = kv_cache[static_cast<size_t>(i - count)];
        TORPOR_RETURN_IF_ERROR(CStatus(torpor_copy_from_device(
            session_, buffer, kv_cache_[piece.segment].address + piece.offset, piece.size)));
        const bool zero = buffer[0] == 0 &&
                          std::memcmp(buffer, buffer + 1, static_cast<size_t>(piece.size) - 1) == 0;
        return zero ? Status::Ok() : Internal("DIFFERENT", "the KV cache is not cleared");
      }));
  return "bytes=" + std::to_string((load_.weight_bytes() + load_.kv_cache_bytes()).value());
}

}  // namespace

int RunWorker(const std::vector<std::string>& arguments) {
  if (arguments.size() != 4) return 2;
  Worker worker;
  Result<ModelLoad> load = MakeModelLoad(arguments[2], std::stoll(arguments[3]));
  const Status opened =
      load.ok() ? worker.Open(arguments[0], arguments[1], *std::move(load)) : load.status();
  if (!opened.ok()) {
    Say(opened);
    return 1;
  }
  Say(std::string("ready"));
  return AnswerLines([&](const std::vector<std::string>& words) { return worker.Do(words); });
}

}  // namespace torpor::bench
