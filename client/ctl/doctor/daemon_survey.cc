#include "client/ctl/doctor/daemon_survey.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "client/ctl/call.h"
#include "client/ctl/print.h"
#include "google/rpc/error_details.pb.h"
#include "lib/base/unique_fd.h"

namespace torpor::ctl::doctor {
namespace {

// Connects and hangs up. `pid`: who listens.
SocketState TryConnect(const std::string& path, int type, Duration limit, pid_t& pid) {
  using State = SocketState::State;
  SocketState state;
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return state;
    state.state = errno == EACCES ? State::kForbidden : State::kFailed;
    state.error = strerrordesc_np(errno);
    return state;
  }
  state.uid = info.st_uid;
  state.gid = info.st_gid;
  state.mode = info.st_mode & 07777;
  state.state = State::kFailed;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    state.error = "its path is too long";
    return state;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  const timeval timeout{micros / 1'000'000, micros % 1'000'000};
  // Also bounds a connect that waits for room in the listener's queue.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  int result = 0;
  do {
    result = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    state.state = State::kListens;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) pid = peer.pid;
  } else if (errno == ECONNREFUSED) {
    state.state = State::kStale;
  } else if (errno == EACCES) {
    state.state = State::kForbidden;
  } else if (errno == EAGAIN) {
    state.state = State::kSilent;
  } else {
    state.error = strerrordesc_np(errno);
  }
  return state;
}

// Whether a process holds a lock on the file: "1: FLOCK  ADVISORY  WRITE 812 00:1a:6613 0 EOF".
bool IsLocked(const Node& node, const std::string& path) {
  const auto info = node.Stat(path);
  if (!info.has_value()) return false;
  std::istringstream lines(node.Read("/proc/locks").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = SplitWords(line);
    if (words.size() < 6 || words[1] != "FLOCK") continue;
    const std::vector<std::string> file = SplitAt(words[5], ':');
    if (file.size() != 3 || file[2] != std::to_string(info->st_ino)) continue;
    if (std::strtoul(file[0].c_str(), nullptr, 16) == major(info->st_dev) &&
        std::strtoul(file[1].c_str(), nullptr, 16) == minor(info->st_dev)) {
      return true;
    }
  }
  return false;
}

void Ask(const std::string& socket, DaemonSurvey& daemon, Duration limit) {
  const std::string target = "unix:" + socket;
  const auto stub = Connect(target);
  grpc::ClientContext context;
  SetTimeout(context, limit);
  // Somebody listens. Else a daemon that is stopped would look like none.
  context.set_wait_for_ready(true);
  v1::UsageResponse usage;
  const TimePoint begin = Clock::Real().Now();
  const grpc::Status status = stub->Usage(&context, v1::UsageRequest(), &usage);
  daemon.usage_time = Clock::Real().Now() - begin;
  if (status.ok()) {
    daemon.usage = std::move(usage);
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    daemon.usage_silent = true;
  } else {
    daemon.usage_error = PrintError(ToRpcStatus(status, target));
  }
}

void Look(const Node& node, DaemonSurvey& daemon, Duration limit) {
  const std::string path = node.root() + daemon.folder;
  pid_t pid = 0;
  daemon.worker = TryConnect(path + "/worker.sock", SOCK_SEQPACKET, limit, pid);
  daemon.control = TryConnect(path + "/control.sock", SOCK_STREAM, limit, pid);
  daemon.pid = pid;
  daemon.lock_pid = static_cast<pid_t>(node.Number(daemon.folder + "/lock").value_or(0));
  daemon.locked = IsLocked(node, daemon.folder + "/lock");
  if (daemon.control.state == SocketState::State::kListens)
    Ask(path + "/control.sock", daemon, limit);
}

// Not the keepers' folders, which may lie beside.
bool IsDaemons(const Node& node, const std::string& folder) {
  const auto info = node.Stat(folder);
  if (!info.has_value() || !S_ISDIR(info->st_mode)) return false;
  const auto has = [&](const char* name) {
    struct stat file {};
    const std::string path = node.root() + folder + name;
    return ::lstat(path.c_str(), &file) == 0 || errno == EACCES;
  };
  return has("/lock") || has("/control.sock") || has("/worker.sock");
}

}  // namespace

std::vector<DaemonSurvey> SurveyDaemons(const Node& node, const std::string& runtime_dir,
                                        const std::string& device, Duration limit) {
  std::vector<DaemonSurvey> daemons;
  for (const std::string& name : node.List(runtime_dir)) {
    if (!device.empty() && name != device) continue;
    DaemonSurvey daemon;
    daemon.device = name;
    daemon.folder = runtime_dir;
    daemon.folder.append("/").append(name);
    if (IsDaemons(node, daemon.folder)) daemons.push_back(std::move(daemon));
  }
  std::vector<std::thread> threads;
  threads.reserve(daemons.size());
  for (DaemonSurvey& daemon : daemons) {
    threads.emplace_back([&node, &daemon, limit] { Look(node, daemon, limit); });
  }
  for (std::thread& thread : threads) thread.join();
  return daemons;
}

std::string ReasonOf(const google::rpc::Status& status) {
  if (status.code() == 0) return "";
  google::rpc::ErrorInfo info;
  for (const google::protobuf::Any& detail : status.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "UNKNOWN";
}

}  // namespace torpor::ctl::doctor
