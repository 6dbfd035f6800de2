#ifndef TORPOR_CLIENT_CTL_PRINT_EVENT_H_
#define TORPOR_CLIENT_CTL_PRINT_EVENT_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {

// One line for people, "12:03:04.123 w-1 (model) op-3 sleep started: ...", in local time and
// without a line feed. Empty for a response without an event.
std::string PrintEvent(const v1::WatchResponse& response);

// What a line shows of operations under way, from their progress.
class ProgressText {
 public:
  // Forgets operations that have ended.
  void Add(const v1::WatchResponse& response);
  // "w-1 weights: 3.20 of 27.50 GiB, 51.0 GB/s"; of several operations their sum. Empty when
  // nothing is under way.
  std::string Line() const;

 private:
  using Time = std::chrono::system_clock::time_point;
  struct Operation {
    v1::ProgressEvent latest;
    std::optional<Time> begin;  // of the copy
    Time end;
  };
  std::map<std::string, Operation> operations_;  // by id
};

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_PRINT_EVENT_H_
