#ifndef TORPOR_DAEMON_ACCESS_CONTROL_LISTENER_H_
#define TORPOR_DAEMON_ACCESS_CONTROL_LISTENER_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/access/peers.h"
#include "daemon/log_limit.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"

namespace torpor::access {

// Accepts the connections of a Unix stream socket for somebody else, and notes of whom they are. At
// most so many are open at a time: beyond that the user with the most connections loses one, the
// longest silent of those that have never called, or else the one that called the longest ago.
// Strangers, who may do nothing, have only kStrangers of them, and kStrangersPerSecond new ones:
// what comes faster is closed at once. So nobody keeps others out, by connections that say nothing,
// by many, or by new ones again and again. Its methods are for one thread.
class ControlListener {
 public:
  static constexpr size_t kStrangers = 8;
  static constexpr int kStrangersPerSecond = 50;

  struct Options {
    std::string path;  // a socket there is replaced: callers hold the lock of its folder
    mode_t mode = 0660;
    std::optional<gid_t> group;  // none: the process's
    size_t connections = 0;      // the most at a time; 0: by RLIMIT_NOFILE, at most 1024
    // Whether whoever connects is a stranger, asked by the listener's thread; null: nobody is.
    std::function<bool(const net::PeerCredentials&)> is_stranger = nullptr;
  };
  // Takes a connection over, non-blocking, and closes it in the end. By the listener's thread.
  using Take = std::function<void(int fd)>;

  // `peers` must outlive it. Errors of the system; INVALID_ARGUMENT SOCKET_PATH_TOO_LONG;
  // RESOURCE_EXHAUSTED THREADS_EXHAUSTED.
  static Result<std::unique_ptr<ControlListener>> Start(const Options& options, Peers& peers,
                                                        Take take);
  // Stops.
  ~ControlListener();
  ControlListener(const ControlListener&) = delete;
  ControlListener& operator=(const ControlListener&) = delete;

  // Removes the socket's file and takes no more connections.
  void Stop();
  // After Stop: ends those that are open.
  void EndConnections();
  // Those that are open, as of the last change. Thread-safe.
  size_t connections() const { return count_; }

 private:
  struct Connection {
    int fd = -1;     // its taker's
    UniqueFd watch;  // a duplicate, by which it is ended, and its end is noticed
    std::optional<uid_t> user;
    bool stranger = false;
    TimePoint since;
  };

  ControlListener(UniqueFd listener, const Options& options, Peers& peers, Take take)
      : listener_(std::move(listener)), options_(options), peers_(peers), take_(std::move(take)) {}

  // --- By its thread.
  void Accept();
  // False: nobody waits.
  bool AcceptOne();
  bool ComesTooFast();
  void MakeRoom(bool among_strangers, const char* why);
  void Log(const std::string& kind, const std::string& what);

  const UniqueFd listener_;
  const Options options_;
  Peers& peers_;
  const Take take_;
  std::vector<Connection> connections_;  // the thread's while it runs, as are the next three
  UniqueFd spare_;                       // closed to accept, and close, when there are no others
  TimePoint second_;                     // when the one began in which
  int strangers_in_it_ = 0;              // so many have come
  log::Limit log_;
  std::atomic<size_t> count_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace torpor::access

#endif  // TORPOR_DAEMON_ACCESS_CONTROL_LISTENER_H_
