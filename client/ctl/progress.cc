#include "client/ctl/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client/ctl/text_width.h"
#include "lib/base/units.h"

namespace torpor::ctl {
namespace {

std::chrono::system_clock::time_point TimeOf(const google::protobuf::Timestamp& time) {
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::seconds(time.seconds()) + std::chrono::nanoseconds(time.nanos())));
}

}  // namespace

std::vector<size_t> BarCells(size_t width, const std::vector<int64_t>& amounts, int64_t total) {
  std::vector<size_t> cells;
  double sum = 0;
  size_t used = 0;
  for (const int64_t amount : amounts) {
    sum += static_cast<double>(std::max<int64_t>(amount, 0));
    const double share = total <= 0 ? 0 : std::min(sum / static_cast<double>(total), 1.0);
    const auto end =
        std::max(used, static_cast<size_t>(std::lround(share * static_cast<double>(width))));
    cells.push_back(end - used);
    used = end;
  }
  return cells;
}

void Operations::Add(const v1::WatchResponse& response) {
  if (response.has_operation() && response.operation().change() == v1::OPERATION_CHANGE_ENDED) {
    operations_.erase(response.operation().operation_id());
  }
  if (!response.has_progress()) return;
  const v1::ProgressEvent& progress = response.progress();
  Operation& operation = operations_[progress.operation_id()];
  if (progress.phase() == v1::OPERATION_PHASE_COPY) {
    operation.end = TimeOf(response.time());
    if (!operation.begin.has_value()) operation.begin = operation.end;
  }
  operation.latest = progress;
}

std::vector<Moving> Operations::List() const {
  std::vector<Moving> all;
  for (const auto& [id, operation] : operations_) {
    Moving& moving = all.emplace_back(Moving{operation.latest, 0});
    if (!operation.begin.has_value() || operation.end <= *operation.begin) continue;
    const std::chrono::duration<double> time = operation.end - *operation.begin;
    moving.bytes_per_second = static_cast<double>(operation.latest.done_bytes()) / time.count();
  }
  return all;
}

std::string DoingText(const v1::ProgressEvent& event) {
  const bool wake = event.kind() == v1::OPERATION_KIND_WAKE_UP;
  switch (event.phase()) {
    case v1::OPERATION_PHASE_QUIESCE:
      return "waits for the worker to come to rest";
    case v1::OPERATION_PHASE_COPY:
      return "copies " + event.tag();
    case v1::OPERATION_PHASE_WORKER:
      return wake ? "waits for the worker to map" : "waits for the worker to unmap";
    case v1::OPERATION_PHASE_HANDLES:
      return wake ? "creates memory" : "releases memory";
    default:
      return "goes on";
  }
}

std::string ShareText(int64_t done_bytes, int64_t total_bytes) {
  std::string first = FormatBytes(Bytes(done_bytes));
  const std::string second = FormatBytes(Bytes(total_bytes));
  const size_t unit = first.find(' ');
  if (first.substr(unit) == second.substr(second.find(' '))) first.resize(unit);
  return first + " of " + second;
}

std::string ProgressBar(const Moving& moving, size_t width) {
  const v1::ProgressEvent& event = moving.latest;
  std::string left = event.worker_id() + " " + DoingText(event);
  std::string right;
  if (event.total_bytes() > 0) {
    const double share =
        static_cast<double>(event.done_bytes()) / static_cast<double>(event.total_bytes());
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3.0f%%", std::clamp(share, 0.0, 1.0) * 100);
    right = std::string("  ") + percent + "  " + ShareText(event.done_bytes(), event.total_bytes());
  }
  if (moving.bytes_per_second > 0) {
    char speed[32];
    std::snprintf(speed, sizeof speed, ", %.1f GB/s", moving.bytes_per_second / 1e9);
    right += speed;
  }
  constexpr size_t kLeast = 10;
  constexpr size_t kMost = 40;
  const size_t taken = TextWidth(left) + TextWidth(right) + 4;  // two blanks, two brackets
  if (!right.empty() && taken + kLeast <= width) {
    const size_t cells = std::min(kMost, width - taken);
    const size_t done = BarCells(cells, {event.done_bytes()}, event.total_bytes()).front();
    left += "  [" + std::string(done, '#') + std::string(cells - done, '.') + "]";
  }
  const std::string line = left + right;
  return TextWidth(line) <= width ? Printable(line) : FitText(line, width);
}

}  // namespace torpor::ctl
