#ifndef TORPOR_CLIENT_CTL_FRAME_H_
#define TORPOR_CLIENT_CTL_FRAME_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/progress.h"
#include "google/rpc/status.pb.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {

// One daemon as the view shows it.
struct DaemonView {
  std::string name;
  std::optional<v1::UsageResponse> usage;  // the last one
  std::chrono::system_clock::time_point usage_time;
  google::rpc::Status status;  // not OK: why it does not answer
  std::vector<Moving> moving;
  std::deque<v1::WatchResponse> events;  // the oldest first
  google::rpc::Status no_events;         // not OK: why there are none any more
};

struct View {
  std::vector<DaemonView> daemons;
  std::chrono::system_clock::time_point now;
};

struct FrameSize {
  size_t columns = 80;
  size_t rows = 24;
};

// The view as lines for a terminal of that size: at most `rows`, none wider than `columns`; what
// does not fit is counted. With `colours`, escape sequences are in it that take no room. Amounts of
// memory are short: 1.5G is 1.5 GiB.
std::vector<std::string> RenderFrame(const View& view, FrameSize size, bool colours);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_FRAME_H_
