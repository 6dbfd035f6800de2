#ifndef TORPOR_DAEMON_SESSION_WORKER_SERVER_H_
#define TORPOR_DAEMON_SESSION_WORKER_SERVER_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "daemon/operation/tasks.h"
#include "lib/base/mutex.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/frame.h"
#include "lib/net/unix_socket.h"
#include "lib/wire/channel.h"
#include "lib/wire/messages.h"

namespace torpor {

// Accepts workers on the worker socket. Each connection has a thread that waits for its Hello and
// then reads its frames. A connection that says anything else first, or nothing for five seconds,
// is closed. Thread-safe.
class WorkerServer {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Not OK: the worker is told so and the connection closed.
    virtual Result<wire::HelloReply> OnHello(const wire::Hello& hello,
                                             const net::PeerCredentials& peer,
                                             const std::shared_ptr<wire::Channel>& channel) = 0;
    // By the connection's thread: must not wait for answers of the same worker.
    virtual void OnRequest(WorkerId worker, const std::shared_ptr<wire::Channel>& channel,
                           net::Frame request) = 0;
    // The connection has ended; nothing follows.
    virtual void OnGone(WorkerId worker, const Status& why) = 0;
  };

  // `handler` must outlive the server.
  static Result<std::unique_ptr<WorkerServer>> Start(const std::string& path, mode_t mode,
                                                     Handler& handler);
  // Stops accepting, ends all connections and waits for their threads.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

 private:
  WorkerServer(UniqueFd listener, std::string path, Handler& handler)
      : listener_(std::move(listener)), path_(std::move(path)), handler_(handler) {}
  void Accept();
  void Serve(UniqueFd socket);

  const UniqueFd listener_;
  const std::string path_;
  Handler& handler_;
  Mutex mutex_;
  std::map<wire::Channel*, std::weak_ptr<wire::Channel>> channels_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  Tasks connections_;
  std::thread acceptor_;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_SESSION_WORKER_SERVER_H_
