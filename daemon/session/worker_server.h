#ifndef TORPOR_DAEMON_SESSION_WORKER_SERVER_H_
#define TORPOR_DAEMON_SESSION_WORKER_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "daemon/log_limit.h"
#include "daemon/operation/tasks.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/channel.h"
#include "lib/wire/messages.h"

namespace torpor {

// Accepts workers on the worker socket. The acceptor waits for the Hello of all connections; one
// that has said it gets a thread, which reads its frames. A connection that says anything else
// first, or nothing for five seconds, or nothing while many others come, is closed. Thread-safe.
class WorkerServer {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Not OK: the worker is told so and the connection closed.
    virtual Result<wire::HelloReply> OnHello(const wire::Hello& hello,
                                             const net::PeerCredentials& peer,
                                             const std::shared_ptr<wire::Channel>& channel) = 0;
    // The worker has been told: from now on it can be asked.
    virtual void OnWelcomed(WorkerId /*worker*/) {}
    // By the connection's thread: must not wait for answers of the same worker.
    virtual void OnRequest(WorkerId worker, const std::shared_ptr<wire::Channel>& channel,
                           net::Frame request) = 0;
    // The connection has ended; nothing follows.
    virtual void OnGone(WorkerId worker, const Status& why) = 0;
  };

  struct Limits {
    size_t silent = 16;        // connections that have not said Hello
    size_t workers = 1024;     // those that have
    int64_t descriptors = 16;  // that workers' connections leave to others
    Tasks::Starter start_thread = StartThread;
  };

  // `handler` must outlive the server.
  static Result<std::unique_ptr<WorkerServer>> Start(const std::string& path, mode_t mode,
                                                     Handler& handler) {
    return Start(path, mode, handler, Limits());
  }
  // `group`: of the socket's file; none: the process's.
  static Result<std::unique_ptr<WorkerServer>> Start(const std::string& path, mode_t mode,
                                                     Handler& handler, const Limits& limits,
                                                     std::optional<gid_t> group = std::nullopt);
  // Stops accepting, ends all connections and waits for their threads.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

 private:
  struct Silent {
    UniqueFd socket;
    TimePoint since;
  };
  struct Greeting {
    Result<wire::Hello> hello;
    uint64_t id = 0;
  };

  WorkerServer(UniqueFd listener, std::string path, Handler& handler, const Limits& limits)
      : listener_(std::move(listener)),
        path_(std::move(path)),
        handler_(handler),
        limits_(limits),
        connections_(limits.start_thread) {}

  // --- By the acceptor.
  void Accept();
  // False: the server stops.
  bool AcceptOne();
  void Greet(UniqueFd socket);
  void DropOldest(const char* why);
  void LogRefusal(const Status& why);

  void Serve(const std::shared_ptr<wire::Channel>& channel, const net::PeerCredentials& peer,
             const Greeting& greeting) EXCLUDES(mutex_);
  // OK: it is among `channels_`.
  Status Enter(const std::shared_ptr<wire::Channel>& channel) EXCLUDES(mutex_);

  const UniqueFd listener_;
  const std::string path_;
  Handler& handler_;
  const Limits limits_;
  log::Limit log_limit_;
  std::deque<Silent> silent_;  // the acceptor's, as is the next; the oldest first
  UniqueFd spare_;             // closed to accept, and refuse, when there are no others
  Mutex mutex_;
  std::map<wire::Channel*, std::weak_ptr<wire::Channel>> channels_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  Tasks connections_;
  std::thread acceptor_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SESSION_WORKER_SERVER_H_
