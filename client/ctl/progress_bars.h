#ifndef TORPOR_CLIENT_CTL_PROGRESS_BARS_H_
#define TORPOR_CLIENT_CTL_PROGRESS_BARS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/ctl/progress.h"
#include "lib/base/mutex.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {

// Draws a line for each operation under way on standard error while it lives, if that is a
// terminal, as far as they fit; otherwise, or if a daemon does not tell, it does nothing.
class ProgressBars {
 public:
  // A daemon's name, empty if there is but one, and its stub, which must outlive the bars.
  using Source = std::pair<std::string, v1::MemoryService::Stub*>;
  ProgressBars(const std::vector<Source>& sources, const v1::Selector& selector);
  ~ProgressBars();
  ProgressBars(const ProgressBars&) = delete;
  ProgressBars& operator=(const ProgressBars&) = delete;

 private:
  struct Stream {
    Source source;
    grpc::ClientContext context;
    Operations operations;
    std::thread thread;
  };
  void Follow(Stream& stream, const v1::WatchRequest& request) EXCLUDES(mutex_);
  // Replaces what is drawn.
  void Draw(const std::vector<std::string>& lines) REQUIRES(mutex_);
  std::vector<std::string> Lines() const REQUIRES(mutex_);

  std::deque<Stream> streams_;  // their operations are guarded by mutex_
  Mutex mutex_;
  CondVar changed_;
  size_t begun_ GUARDED_BY(mutex_) = 0;
  size_t drawn_ GUARDED_BY(mutex_) = 0;  // lines
};

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_PROGRESS_BARS_H_
