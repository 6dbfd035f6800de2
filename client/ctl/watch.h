#ifndef TORPOR_CLIENT_CTL_WATCH_H_
#define TORPOR_CLIENT_CTL_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>

#include "client/ctl/command.h"
#include "lib/base/mutex.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor::ctl {

// Prints events until a signal (BlockStopSignals) or the command's timeout (OK), or the daemon ends
// the call.
grpc::Status RunWatch(v1::MemoryService::Stub& stub, const Command& command);

// Draws a line of progress on standard error while it lives, if that is a terminal; otherwise, or
// if the daemon does not tell, it does nothing. `stub` must outlive it.
class ProgressLine {
 public:
  ProgressLine(v1::MemoryService::Stub& stub, const v1::Selector& selector);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  void Run(const v1::WatchRequest& request) EXCLUDES(mutex_);

  v1::MemoryService::Stub& stub_;
  grpc::ClientContext context_;
  Mutex mutex_;
  CondVar changed_;
  bool begun_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_WATCH_H_
