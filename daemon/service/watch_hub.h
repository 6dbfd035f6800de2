#ifndef TORPOR_DAEMON_SERVICE_WATCH_HUB_H_
#define TORPOR_DAEMON_SERVICE_WATCH_HUB_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "daemon/events/event_log.h"
#include "daemon/service/event_conversions.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "torpor/v1/memory_service.grpc.pb.h"

namespace torpor {

// All calls of Watch. Each has one response under way at most and its own place in the log; one
// thread starts those that have nothing under way when there is something new. Thread-safe. `log`
// must outlive it, and it the server.
class WatchHub {
 public:
  static constexpr size_t kMaxWatchers = 256;

  explicit WatchHub(EventLog& log);
  ~WatchHub();
  WatchHub(const WatchHub&) = delete;
  WatchHub& operator=(const WatchHub&) = delete;

  // The call's reactor. INVALID_ARGUMENT BAD_CURSOR, BAD_EVENT_KIND, BAD_WORKER_NAME;
  // RESOURCE_EXHAUSTED TOO_MANY_WATCHERS; what End said.
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(const v1::WatchRequest& request)
      EXCLUDES(mutex_);

  // Ends each call with `why` once it has the events up to now, and refuses new ones. Does not wait
  // for callers that do not read.
  void End(const Status& why) EXCLUDES(mutex_);

  size_t watchers() const EXCLUDES(mutex_);

 private:
  class Watcher;
  Result<std::shared_ptr<Watcher>> Add(const v1::WatchRequest& request) EXCLUDES(mutex_);
  void Remove(const Watcher* watcher) EXCLUDES(mutex_);
  void Run() EXCLUDES(mutex_);

  EventLog& log_;
  mutable Mutex mutex_;
  std::map<const Watcher*, std::shared_ptr<Watcher>> watchers_ GUARDED_BY(mutex_);
  Status ended_ GUARDED_BY(mutex_);
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SERVICE_WATCH_HUB_H_
