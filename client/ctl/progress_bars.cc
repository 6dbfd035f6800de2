#include "client/ctl/progress_bars.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "lib/base/clock.h"

namespace torpor::ctl {
namespace {

// How long a command waits for its bars before it begins without.
constexpr Duration kPatience = milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";
constexpr char kUp[] = "\x1b[1A";

winsize SizeOfTerminal() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  if (!known || size.ws_col < 10) size.ws_col = 80;
  if (!known || size.ws_row < 2) size.ws_row = 24;
  return size;
}

}  // namespace

ProgressBars::ProgressBars(const std::vector<Source>& sources, const v1::Selector& selector) {
  if (::isatty(STDERR_FILENO) == 0) return;
  v1::WatchRequest request;
  request.add_kinds(v1::EVENT_KIND_PROGRESS);
  request.add_kinds(v1::EVENT_KIND_OPERATION);
  *request.mutable_workers() = selector.workers();
  for (const Source& source : sources) streams_.emplace_back().source = source;
  for (Stream& stream : streams_) {
    stream.thread = std::thread([this, &stream, request] { Follow(stream, request); });
  }
  const TimePoint until = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mutex_);
  while (begun_ < streams_.size() && std::chrono::steady_clock::now() < until) {
    changed_.WaitUntil(mutex_, until);
  }
}

ProgressBars::~ProgressBars() {
  for (Stream& stream : streams_) stream.context.TryCancel();
  for (Stream& stream : streams_) stream.thread.join();
  MutexLock lock(mutex_);
  Draw({});
}

void ProgressBars::Follow(Stream& stream, const v1::WatchRequest& request) {
  const auto reader = stream.source.second->Watch(&stream.context, request);
  bool begun = false;
  const auto begin = [&] {
    MutexLock lock(mutex_);
    if (!begun) ++begun_;
    begun = true;
    changed_.NotifyAll();
  };
  v1::WatchResponse response;
  while (reader->Read(&response)) {
    begin();
    MutexLock lock(mutex_);
    stream.operations.Add(response);
    Draw(Lines());
  }
  (void)reader->Finish();
  begin();
  MutexLock lock(mutex_);
  stream.operations.Clear();
}

std::vector<std::string> ProgressBars::Lines() const {
  const winsize size = SizeOfTerminal();
  std::vector<std::string> lines;
  for (const Stream& stream : streams_) {
    const std::string& name = stream.source.first;
    for (const Moving& moving : stream.operations.List()) {
      const std::string prefix = name.empty() ? "" : name + " ";
      const size_t room = size.ws_col - 1u;
      lines.push_back(prefix.size() + 20 > room
                          ? ProgressBar(moving, room)
                          : prefix + ProgressBar(moving, room - prefix.size()));
    }
  }
  const size_t most = size.ws_row - 1u;
  if (lines.size() > most) {
    const size_t left_out = lines.size() - most + 1;
    lines.resize(most - 1);
    lines.push_back("... " + std::to_string(left_out) + " more");
  }
  return lines;
}

void ProgressBars::Draw(const std::vector<std::string>& lines) {
  if (lines.empty() && drawn_ == 0) return;
  std::string text;
  for (size_t i = 1; i < drawn_; ++i) text.append(kClearLine).append(kUp);
  for (size_t i = 0; i < std::max<size_t>(lines.size(), 1); ++i) {
    text.append(i == 0 ? "" : "\n").append(kClearLine);
    if (i < lines.size()) text += lines[i];
  }
  std::fputs(text.c_str(), stderr);
  drawn_ = lines.size();
}

}  // namespace torpor::ctl
