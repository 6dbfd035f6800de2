#include "client/ctl/daemons.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/net/unix_socket.h"

namespace torpor::ctl {
namespace {

constexpr char kSocketName[] = "/control.sock";
constexpr std::string_view kUnix = "unix:";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsSocket(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

Status NotRunning(const std::string& path) {
  return Unavailable("DAEMON_NOT_RUNNING", "no daemon listens at " + path).With("path", path);
}

Daemon OfDevice(const std::string& runtime_dir, const std::string& device) {
  const std::string path = runtime_dir + "/" + device + kSocketName;
  return {device, device, std::string(kUnix) + path,
          net::IsSocketInUse(path) ? Status::Ok() : NotRunning(path)};
}

// Those whose socket file is in `runtime_dir`, in the order of their names.
std::vector<Daemon> Scan(const std::string& runtime_dir) {
  std::vector<Daemon> found;
  std::error_code error;
  std::filesystem::directory_iterator entry(runtime_dir, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string device = entry->path().filename().string();
    if (!IsSocket(std::string(runtime_dir).append("/").append(device).append(kSocketName)))
      continue;
    found.push_back(OfDevice(runtime_dir, device));
  }
  std::sort(found.begin(), found.end(),
            [](const Daemon& a, const Daemon& b) { return a.name < b.name; });
  return found;
}

std::string Join(const std::vector<std::string>& items, const char* separator) {
  std::string all;
  for (const std::string& item : items) all.append(all.empty() ? "" : separator).append(item);
  return all;
}

std::string Candidates(const std::vector<Daemon>& daemons) {
  std::vector<std::string> paths;
  paths.reserve(daemons.size());
  for (const Daemon& daemon : daemons) paths.push_back(daemon.target.substr(kUnix.size()));
  return Join(paths, ",");
}

std::string AllCandidates(const std::vector<std::string>& dirs) {
  std::vector<Daemon> all;
  for (const std::string& dir : dirs) {
    const std::vector<Daemon> found = Scan(dir);
    all.insert(all.end(), found.begin(), found.end());
  }
  return Candidates(all);
}

bool Runs(const Daemon& daemon) { return daemon.status.ok(); }

Daemon OfTarget(const std::string& target) {
  const std::string path = SocketPathOf(target);
  const bool runs = path.empty() || net::IsSocketInUse(path);
  return {target, "", target, runs ? Status::Ok() : NotRunning(path)};
}

// Keeps the first of those that are the same daemon: it is asked once, and counted once.
void RemoveRepeated(std::vector<Daemon>& daemons) {
  std::set<std::string> seen;
  const auto repeated = [&](const Daemon& daemon) {
    const std::string path = SocketPathOf(daemon.target);
    std::error_code error;
    const std::string name =
        path.empty() ? daemon.target
                     : "unix:" + std::filesystem::weakly_canonical(path, error).string();
    return !seen.insert(error ? daemon.target : name).second;
  };
  daemons.erase(std::remove_if(daemons.begin(), daemons.end(), repeated), daemons.end());
}

Result<std::vector<Daemon>> FindDevices(const std::vector<std::string>& devices,
                                        const std::vector<std::string>& dirs) {
  std::vector<Daemon> daemons;
  for (const std::string& device : devices) {
    Daemon daemon = OfDevice(dirs.front(), device);
    for (const std::string& dir : dirs) {
      if (Runs(daemon)) break;
      if (Daemon other = OfDevice(dir, device); Runs(other)) daemon = std::move(other);
    }
    if (!Runs(daemon)) {
      daemon.status = Unavailable("DAEMON_NOT_RUNNING", "no daemon serves device " + device +
                                                            " under " + Join(dirs, " or "));
      // Those of the others that are asked as well would only be in the way.
      const std::string candidates = devices.size() == 1 ? AllCandidates(dirs) : "";
      if (!candidates.empty()) daemon.status.Add("candidates", candidates);
    }
    daemons.push_back(std::move(daemon));
  }
  return daemons;
}

Result<std::vector<Daemon>> FindAny(bool several, const std::vector<std::string>& dirs) {
  std::vector<Daemon> dead;
  for (const std::string& dir : dirs) {
    std::vector<Daemon> found = Scan(dir);
    const auto live = std::count_if(found.begin(), found.end(), Runs);
    if (live == 0) {
      dead.insert(dead.end(), found.begin(), found.end());
      continue;
    }
    if (several) return found;
    found.erase(std::remove_if(found.begin(), found.end(), std::not_fn(Runs)), found.end());
    if (live == 1) return found;
    return FailedPrecondition("AMBIGUOUS_DAEMON",
                              "several daemons listen under " + dir +
                                  ": say which by --device or --target, or --all-devices")
        .With("candidates", Candidates(found));
  }
  Status status =
      Unavailable("DAEMON_NOT_RUNNING", "no daemon listens under " + Join(dirs, " or "));
  if (!dead.empty()) status.Add("candidates", Candidates(dead));
  return status;
}

}  // namespace

std::vector<std::string> RuntimeDirs(const std::string& runtime_dir, bool root) {
  if (!runtime_dir.empty()) return {runtime_dir};
  if (std::string dir = Environment("TORPOR_RUNTIME_DIR"); !dir.empty()) return {std::move(dir)};
  std::vector<std::string> dirs;
  const std::string own = Environment("XDG_RUNTIME_DIR");
  if (!root && !own.empty()) dirs.push_back(own + "/torpor");
  dirs.emplace_back("/run/torpor");
  return dirs;
}

std::string SocketPathOf(const std::string& target) {
  if (target.compare(0, kUnix.size(), kUnix) != 0) return "";
  std::string path = target.substr(kUnix.size());
  if (path.compare(0, 2, "//") == 0) path.erase(0, 2);
  return path;
}

Result<std::vector<Daemon>> FindDaemons(const Command& command) {
  const bool several = AsksSeveral(command);
  const std::vector<std::string> dirs = RuntimeDirs(command.runtime_dir, ::geteuid() == 0);
  std::vector<Daemon> daemons;
  if (!command.targets.empty()) {
    for (const std::string& target : command.targets) daemons.push_back(OfTarget(target));
  } else if (!command.devices.empty()) {
    TORPOR_ASSIGN_OR_RETURN(daemons, FindDevices(command.devices, dirs));
  } else {
    TORPOR_ASSIGN_OR_RETURN(daemons, FindAny(several, dirs));
  }
  RemoveRepeated(daemons);
  if (!several && !Runs(daemons.front())) return daemons.front().status;
  return daemons;
}

}  // namespace torpor::ctl
