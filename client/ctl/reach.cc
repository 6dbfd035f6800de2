#include "client/ctl/reach.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "client/ctl/call.h"
#include "client/ctl/daemons.h"
#include "lib/base/status.h"
#include "lib/base/unique_fd.h"
#include "lib/net/unix_socket.h"

namespace torpor::ctl {
namespace {

// Less than gRPC gives a connection: what failed after that long was no full queue.
constexpr Duration kQueuePatience = seconds(8);
constexpr Duration kSlice = milliseconds(100);

// Why the socket at `path` takes no connection, `error` by the system's word.
Status Refused(const std::string& path, const Status& error) {
  struct stat socket {};
  if (error.code() != Code::kPermissionDenied || ::stat(path.c_str(), &socket) != 0) return error;
  constexpr mode_t kGroupMay = S_IRGRP | S_IWGRP;
  group entry{};
  group* found = nullptr;
  std::array<char, 4096> text{};
  ::getgrgid_r(socket.st_gid, &entry, text.data(), text.size(), &found);
  const std::string name = found == nullptr ? std::to_string(socket.st_gid) : entry.gr_name;
  const std::string advice = (socket.st_mode & kGroupMay) == kGroupMay
                                 ? ": it is for the group " + name + ": join it, and log in again"
                                 : ": it is for its owner alone, see --socket_mode of torpord";
  Status status(error.code(), error.reason(), error.message() + advice);
  for (const auto& [key, value] : error.details()) status.Add(key, value);
  status.Add("path", path);
  status.Add("group", name);
  return status;
}

}  // namespace

Result<std::shared_ptr<grpc::Channel>> Reach(const std::string& target, Duration patience,
                                             const std::function<bool()>& stopped) {
  std::shared_ptr<grpc::Channel> channel = OpenChannel(target);
  const std::string path = SocketPathOf(target);
  if (path.empty()) return channel;
  const TimePoint until = Clock::Real().Now() + std::min(patience, kQueuePatience);
  bool is_full = false;
  while (!stopped()) {
    const grpc_connectivity_state state = channel->GetState(true);
    if (state == GRPC_CHANNEL_READY) break;
    if (Clock::Real().Now() >= until) {
      if (!is_full) break;
      return Unavailable("SOCKET_QUEUE_FULL",
                         "others fill the queue of those who wait for a connection at " + path)
          .With("path", path);
    }
    if (state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
      channel->WaitForStateChange(state,
                                  std::chrono::system_clock::now() + std::min(kSlice, patience));
      continue;
    }
    // gRPC does not wait; this does, in the order of those who wait.
    Result<UniqueFd> connected = net::ConnectUnix(path, kSlice, SOCK_STREAM);
    if (connected.ok() && ::fcntl(connected->get(), F_SETFL, O_NONBLOCK) == 0) {
      return ChannelOn(*std::move(connected));
    }
    if (connected.ok()) break;
    is_full = connected.status().code() == Code::kDeadlineExceeded;
    if (!is_full) return Refused(path, connected.status());
  }
  return channel;
}

}  // namespace torpor::ctl
