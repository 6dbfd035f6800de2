#ifndef TORPOR_CLIENT_CTL_PROGRESS_H_
#define TORPOR_CLIENT_CTL_PROGRESS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {

// How many of `width` cells of a bar each of the amounts takes when `total` fills it. What is
// negative takes none; together they take no more than all.
std::vector<size_t> BarCells(size_t width, const std::vector<int64_t>& amounts, int64_t total);

// An operation under way, on one worker.
struct Moving {
  v1::ProgressEvent latest;
  double bytes_per_second = 0;  // of its copy so far; 0: not known
};

// What is under way, from a daemon's progress and operation events. Not thread-safe.
class Operations {
 public:
  // Forgets operations that have ended.
  void Add(const v1::WatchResponse& response);
  void Clear() { operations_.clear(); }
  // In the order of their ids.
  std::vector<Moving> List() const;

 private:
  using Time = std::chrono::system_clock::time_point;
  struct Operation {
    v1::ProgressEvent latest;
    std::optional<Time> begin;  // of the copy
    Time end;
  };
  std::map<std::string, Operation> operations_;  // by id
};

// "copies weights", "waits for the worker to map"
std::string DoingText(const v1::ProgressEvent& event);
// "3.20 of 27.50 GiB", "512.00 MiB of 1.00 GiB"
std::string ShareText(int64_t done_bytes, int64_t total_bytes);

// "w-1 copies weights  [######........]  43%  3.20 of 7.50 GiB, 51.0 GB/s", at most `width`
// columns.
std::string ProgressBar(const Moving& moving, size_t width);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_PROGRESS_H_
